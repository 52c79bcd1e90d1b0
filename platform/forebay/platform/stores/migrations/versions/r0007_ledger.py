"""The ledger by month: usage records in partitions, corrections, periods that close, and the hourly rollup.

What must hold whoever inserts, a program of the version before this one included, the database sees to itself: a row's
period, that nothing enters a closed one, and that the rollup has every row once.
"""

from alembic import op

revision = "0007"
down_revision = "0006"

_CLASSES = ("input_uncached", "cache_read", "cache_write", "output", "reasoning")
_KEY = (
    "period, charge_hour, tenant_id, project_id, key_id, model, api, tier_used, pool, price_version, price_multiplier"
)
_KEPT = """
    request_id, attempt, tenant_id, project_id, key_id, api, model, pool, endpoint, engine, stream, tier_requested,
    tier_used, price_version, started_at, ended_at, first_byte_s, status, terminated_by, measured, finish_reason, error,
    engine_input_uncached, engine_cache_read, engine_cache_write, engine_output, engine_reasoning,
    billable_input_uncached, billable_cache_read, billable_cache_write, billable_output, billable_reasoning,
    recorded_at, price_multiplier, estimated
"""
_MEASURES = ("requests", "attempts", "unmeasured", "estimated", *(
    f"{kind}_{name}" for kind in ("billable", "engine") for name in _CLASSES
))  # fmt: skip


def _rolled_up(source: str) -> str:
    """The rollup of some rows. `entry` odd takes back what the entry before it had counted."""
    sign = "CASE WHEN entry % 2 = 0 THEN 1 ELSE -1 END"
    sums = [
        f"coalesce(sum({sign}) FILTER (WHERE attempt = 1), 0) AS requests",
        f"sum({sign}) AS attempts",
        f"coalesce(sum({sign}) FILTER (WHERE NOT measured), 0) AS unmeasured",
        f"coalesce(sum({sign}) FILTER (WHERE estimated), 0) AS estimated",
        *(f"sum(billable_{name})::bigint AS billable_{name}" for name in _CLASSES),
        *(
            f"coalesce(sum(engine_{name}) FILTER (WHERE entry = 0), 0)::bigint AS engine_{name}" for name in _CLASSES
        ),  # corrections do not change what an engine has counted
    ]
    # 1 and 1.0 are one multiplier: whichever came first would otherwise be what is shown.
    key = _KEY.replace("price_multiplier", "trim_scale(price_multiplier) AS price_multiplier")
    keys = ", ".join(str(number) for number in range(1, 12))
    return f"SELECT {key}, {', '.join(sums)} FROM {source} GROUP BY {keys}"  # noqa: S608 - ours


_RECORDS = (
    "ALTER TABLE usage_records RENAME TO usage_records_before",
    """
    CREATE TABLE usage_records (
        request_id text NOT NULL,
        attempt integer NOT NULL,
        entry integer NOT NULL DEFAULT 0 CHECK (entry >= 0),  -- odd: the entry before it, negated; even: instead of it
        tenant_id text NOT NULL,  -- ids refer to no table: records outlive a deleted tenant
        project_id text NOT NULL,
        key_id text NOT NULL,
        session text NOT NULL DEFAULT '',
        api text NOT NULL,
        model text NOT NULL,
        pool text NOT NULL,
        endpoint text NOT NULL,
        engine text NOT NULL,
        stream boolean NOT NULL,
        tier_requested text NOT NULL,
        tier_used text NOT NULL,
        price_version text NOT NULL,
        price_multiplier numeric NOT NULL DEFAULT 1,
        started_at timestamptz NOT NULL,
        ended_at timestamptz NOT NULL,
        charge_hour timestamptz NOT NULL
            GENERATED ALWAYS AS (date_bin('1 hour', ended_at, '1970-01-01 00:00:00+00')) STORED,
        period date NOT NULL,  -- the first of the month in which it is billed, by trigger
        first_byte_s double precision,
        status text NOT NULL,
        terminated_by text NOT NULL,
        measured boolean NOT NULL,
        estimated boolean NOT NULL DEFAULT false,
        finish_reason text,
        error text,
        engine_input_uncached bigint NOT NULL,
        engine_cache_read bigint NOT NULL,
        engine_cache_write bigint NOT NULL,
        engine_output bigint NOT NULL,
        engine_reasoning bigint NOT NULL,
        billable_input_uncached bigint NOT NULL,
        billable_cache_read bigint NOT NULL,
        billable_cache_write bigint NOT NULL,
        billable_output bigint NOT NULL,
        billable_reasoning bigint NOT NULL,
        recorded_at timestamptz NOT NULL DEFAULT now()
    ) PARTITION BY RANGE (started_at)
    """,
    # What a clock that jumps has dated where there is no month. A month that has rows here stays here.
    "CREATE TABLE usage_records_other PARTITION OF usage_records DEFAULT",
    """
    CREATE TRIGGER usage_records_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON usage_records
        FOR EACH STATEMENT EXECUTE FUNCTION forebay_append_only()
    """,
    """
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON usage_records_other
        FOR EACH STATEMENT EXECUTE FUNCTION forebay_append_only()
    """,
    """
    CREATE FUNCTION forebay_usage_partition(month date) RETURNS boolean LANGUAGE plpgsql AS $$
    -- Make the month's partition. False: it is there, or its rows lie among the others already.
    DECLARE
        name text := 'usage_records_' || to_char(month, 'YYYY_MM');
        since timestamptz := date_trunc('month', month::timestamp) AT TIME ZONE 'UTC';
        until timestamptz := (date_trunc('month', month::timestamp) + interval '1 month') AT TIME ZONE 'UTC';
    BEGIN
        IF to_regclass(name) IS NOT NULL THEN RETURN false; END IF;
        PERFORM pg_advisory_xact_lock(x'666f726562617902'::bigint);
        IF to_regclass(name) IS NOT NULL THEN RETURN false; END IF;
        -- First, against rows that come meanwhile.
        LOCK TABLE usage_records_other IN SHARE MODE;
        IF EXISTS (SELECT FROM usage_records_other WHERE started_at >= since AND started_at < until) THEN
            RETURN false;
        END IF;
        EXECUTE format('CREATE TABLE %I (LIKE usage_records INCLUDING DEFAULTS INCLUDING GENERATED '
                       'INCLUDING CONSTRAINTS)', name);
        EXECUTE format('CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON %I '
                       'FOR EACH STATEMENT EXECUTE FUNCTION forebay_append_only()', name);
        EXECUTE format('ALTER TABLE usage_records ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                       name, since, until);
        RETURN true;
    END
    $$
    """,
    """
    SELECT forebay_usage_partition(month::date) FROM (
        SELECT DISTINCT date_trunc('month', started_at AT TIME ZONE 'UTC') AS month FROM usage_records_before
        WHERE started_at BETWEEN now() - interval '10 years' AND now() + interval '1 month'
        UNION
        SELECT date_trunc('month', now() AT TIME ZONE 'UTC') + ahead * interval '1 month'
        FROM generate_series(0, 2) AS ahead
    ) AS months ORDER BY month
    """,
    f"""
    INSERT INTO usage_records (period, {_KEPT})
    SELECT date_trunc('month', ended_at AT TIME ZONE 'UTC')::date, {_KEPT} FROM usage_records_before
    """,  # noqa: S608 - ours
    "DROP TABLE usage_records_before",
    "ALTER TABLE usage_records ADD PRIMARY KEY (request_id, attempt, entry, started_at)",
    "CREATE INDEX usage_records_tenant ON usage_records (tenant_id, ended_at)",
    "CREATE INDEX usage_records_project ON usage_records (project_id, ended_at)",
    # Rows come nearly in order of time, so a summary of each block range is an index that costs next to nothing.
    """
    CREATE INDEX usage_records_time ON usage_records USING brin (ended_at, charge_hour, period)
        WITH (autosummarize = on)
    """,
)

_PERIODS = (
    # A period is open while it has no row here. They close in order: what is before the last is closed with it.
    """
    CREATE TABLE billing_periods (
        period date PRIMARY KEY CHECK (extract(day FROM period) = 1),
        closed_at timestamptz NOT NULL DEFAULT now(),
        closed_by text NOT NULL,
        requests bigint NOT NULL,
        attempts bigint NOT NULL,
        digest text NOT NULL  -- of the period's rollup, as it was
    )
    """,
    """
    CREATE TRIGGER billing_periods_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON billing_periods
        FOR EACH STATEMENT EXECUTE FUNCTION forebay_append_only()
    """,
    """
    CREATE FUNCTION forebay_first_open_period() RETURNS date LANGUAGE sql AS $$
        SELECT coalesce((max(period) + interval '1 month')::date, '-infinity') FROM billing_periods
    $$
    """,
    """
    CREATE FUNCTION forebay_usage_shared() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        -- Whoever closes a period holds it alone: what is inserted after that sees it closed.
        PERFORM pg_advisory_xact_lock_shared(x'666f726562617903'::bigint);
        PERFORM set_config('forebay.first_open_period', forebay_first_open_period()::text, true);
        RETURN NULL;
    END
    $$
    """,
    """
    CREATE FUNCTION forebay_usage_period() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        new.period := greatest(date_trunc('month', new.ended_at AT TIME ZONE 'UTC')::date,
                               current_setting('forebay.first_open_period')::date);
        RETURN new;
    END
    $$
    """,
    """
    CREATE TRIGGER usage_records_shared BEFORE INSERT ON usage_records
        FOR EACH STATEMENT EXECUTE FUNCTION forebay_usage_shared()
    """,
    """
    CREATE TRIGGER usage_records_period BEFORE INSERT ON usage_records
        FOR EACH ROW EXECUTE FUNCTION forebay_usage_period()
    """,
)

_ROLLUP = (
    f"""
    CREATE TABLE usage_hourly (
        period date NOT NULL,
        charge_hour timestamptz NOT NULL,
        tenant_id text NOT NULL,
        project_id text NOT NULL,
        key_id text NOT NULL,
        model text NOT NULL,
        api text NOT NULL,
        tier_used text NOT NULL,
        pool text NOT NULL,
        price_version text NOT NULL,
        price_multiplier numeric NOT NULL,
        {", ".join(f"{name} bigint NOT NULL" for name in _MEASURES)},
        PRIMARY KEY ({_KEY})
    ) WITH (fillfactor = 70)
    """,
    "CREATE INDEX usage_hourly_tenant ON usage_hourly (tenant_id, charge_hour)",
    "CREATE INDEX usage_hourly_hour ON usage_hourly (charge_hour)",
    f"CREATE VIEW usage_hourly_of_records AS {_rolled_up('usage_records')}",
    f"INSERT INTO usage_hourly ({_KEY}, {', '.join(_MEASURES)}) SELECT * FROM usage_hourly_of_records",  # noqa: S608
    # In the order of the key, so that two transactions never wait for each other.
    f"""
    CREATE FUNCTION forebay_usage_rolled_up() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO usage_hourly AS kept ({_KEY}, {", ".join(_MEASURES)})
        {_rolled_up("posted")} ORDER BY {_KEY}
        ON CONFLICT ({_KEY}) DO UPDATE SET {", ".join(f"{name} = kept.{name} + excluded.{name}" for name in _MEASURES)};
        RETURN NULL;
    END
    $$
    """,
    """
    CREATE TRIGGER usage_records_rolled_up AFTER INSERT ON usage_records REFERENCING NEW TABLE AS posted
        FOR EACH STATEMENT EXECUTE FUNCTION forebay_usage_rolled_up()
    """,
)

_CORRECTIONS = (
    """
    CREATE TABLE usage_corrections (
        request_id text NOT NULL,
        attempt integer NOT NULL,
        entry integer NOT NULL CHECK (entry % 2 = 1),  -- of the reversal; its replacement is the next
        started_at timestamptz NOT NULL,
        corrected_at timestamptz NOT NULL DEFAULT now(),
        corrected_by text NOT NULL,
        reason text NOT NULL,
        PRIMARY KEY (request_id, attempt, entry, started_at)
    )
    """,
    """
    CREATE TRIGGER usage_corrections_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON usage_corrections
        FOR EACH STATEMENT EXECUTE FUNCTION forebay_append_only()
    """,
)


def upgrade() -> None:
    for statement in (*_RECORDS, *_PERIODS, *_ROLLUP, *_CORRECTIONS):
        op.execute(statement)
