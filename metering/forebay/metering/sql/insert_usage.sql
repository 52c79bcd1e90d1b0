-- One parameter, a JSON array of usage records as the spool keeps them: Postgres takes it apart, which spares the front
-- door's processors the work of flattening each record.
INSERT INTO usage_records (
    request_id, attempt, tenant_id, project_id, key_id, api, model, pool, endpoint, engine, stream,
    tier_requested, tier_used, price_version, started_at, ended_at, first_byte_s,
    status, terminated_by, measured, finish_reason, error,
    engine_input_uncached, engine_cache_read, engine_cache_write, engine_output, engine_reasoning,
    billable_input_uncached, billable_cache_read, billable_cache_write, billable_output, billable_reasoning,
    price_multiplier, estimated
)
SELECT
    a.request_id, a.attempt, a.tenant_id, a.project_id, a.key_id, a.api, a.model, a.pool, a.endpoint, a.engine, a.stream,
    a.tier_requested, a.tier_used, a.price_version, to_timestamp(a.started_at), to_timestamp(r.ended_at), r.first_byte_s,
    r.status, r.terminated_by, r.measured, r.finish_reason, r.error,
    coalesce(e.input_uncached, 0), coalesce(e.cache_read, 0), coalesce(e.cache_write, 0), coalesce(e.output, 0),
    coalesce(e.reasoning, 0),
    coalesce(b.input_uncached, 0), coalesce(b.cache_read, 0), coalesce(b.cache_write, 0), coalesce(b.output, 0),
    coalesce(b.reasoning, 0),
    coalesce(a.price_multiplier, 1), coalesce(r.estimated, false)
FROM
    json_to_recordset(CAST(:records AS json)) AS r (
        attempt json, engine json, billable json, status text, terminated_by text, measured boolean,
        ended_at double precision, first_byte_s double precision, finish_reason text, error text,
        estimated boolean
    ),
    json_to_record(r.attempt) AS a (
        request_id text, attempt integer, tenant_id text, project_id text, key_id text, api text, model text, pool text,
        endpoint text, engine text, stream boolean, tier_requested text, tier_used text, price_version text,
        started_at double precision, price_multiplier numeric
    ),
    json_to_record(r.engine) AS e (
        input_uncached bigint, cache_read bigint, cache_write bigint, output bigint, reasoning bigint
    ),
    json_to_record(r.billable) AS b (
        input_uncached bigint, cache_read bigint, cache_write bigint, output bigint, reasoning bigint
    )
ON CONFLICT DO NOTHING
