"""What the journal asks of Postgres."""

from importlib.resources import files

from sqlalchemy import text

_FILES = files("forebay.metering").joinpath("sql")
USED = _FILES.joinpath("stripe_used.sql").read_text(encoding="utf-8")
POSTINGS = _FILES.joinpath("stripe_postings.sql").read_text(encoding="utf-8")

# Cells that Stripe does not know right, or that have something open.
DIFFERENT = text(f"""
    WITH mapped AS ({USED}), counted AS (
        SELECT tenant_id, event_name, hour, max(customer_id) AS customer_id, sum(tokens) AS tokens FROM mapped
        WHERE event_name <> '' AND customer_id <> ''
        GROUP BY tenant_id, event_name, hour
    ), told AS (
        SELECT p.tenant_id, p.event_name, p.hour,
            coalesce(sum(p.value) FILTER (WHERE v.identifier IS NULL), 0) AS tokens,
            bool_or(o.identifier IS NOT NULL) AS open, max(p.customer_id) AS customer_id
        FROM stripe_postings p
        LEFT JOIN (SELECT identifier FROM stripe_steps WHERE step = 'void' GROUP BY identifier) v USING (identifier)
        LEFT JOIN stripe_open o USING (identifier)
        WHERE p.hour >= :since GROUP BY p.tenant_id, p.event_name, p.hour
    )
    SELECT tenant_id, event_name, hour, coalesce(t.customer_id, c.customer_id) AS customer_id,
        coalesce(c.tokens, 0) AS tokens
    FROM counted c FULL JOIN told t USING (tenant_id, event_name, hour)
    WHERE coalesce(c.tokens, 0) <> coalesce(t.tokens, 0) OR t.open
    ORDER BY hour, tenant_id, event_name LIMIT :most
""")  # noqa: S608 - no value is put into it
COUNTED = text(f"""
    SELECT tenant_id, event_name, hour, sum(tokens) AS tokens
    FROM ({USED}) AS mapped WHERE event_name <> '' AND customer_id <> '' AND hour < :until
    GROUP BY tenant_id, event_name, hour
""")  # noqa: S608
UNMAPPED = text(f"""
    SELECT CASE WHEN event_name IS NULL THEN 'meter' ELSE 'customer' END AS missing, tenant_id, model, tier,
        token_class, sum(tokens) AS tokens, min(hour) AS first_hour, max(hour) AS last_hour
    FROM ({USED}) AS mapped
    WHERE (event_name IS NULL AND customer_id IS DISTINCT FROM '') OR (customer_id IS NULL AND event_name <> '')
    GROUP BY 1, tenant_id, model, tier, token_class HAVING sum(tokens) <> 0
    ORDER BY 1, tenant_id, model, tier, token_class
""")  # noqa: S608
OF_CELLS = text(f"""
    {POSTINGS}
    JOIN unnest(CAST(:tenants AS text[]), CAST(:events AS text[]), CAST(:hours AS timestamptz[]))
        AS k (tenant_id, event_name, hour) USING (tenant_id, event_name, hour)
    ORDER BY p.hour, p.tenant_id, p.event_name, p.seq
""")
UNSETTLED = text(f"""
    SELECT * FROM ({POSTINGS} JOIN stripe_open USING (identifier)) AS one WHERE state IN ('intended', 'cancelling')
    ORDER BY created_at, identifier LIMIT :most
""")  # noqa: S608
REJECTED = text(f"""
    SELECT * FROM ({POSTINGS} JOIN stripe_open USING (identifier)) AS one WHERE state = 'rejected'
    ORDER BY hour, identifier
""")  # noqa: S608
BILLED = text(f"""
    {POSTINGS} WHERE p.customer_id = :customer AND p.event_name = :event
        AND p.billed_at >= :start AND p.billed_at < :until ORDER BY p.billed_at, p.identifier
""")
OF_HOURS = text(f"{POSTINGS} WHERE p.hour >= :start AND p.hour < :until")
BILLED_ALL = text(f"""
    {POSTINGS} WHERE p.billed_at >= :start AND p.billed_at < :until ORDER BY p.billed_at, p.identifier
""")
ONE = text(f"{POSTINGS} WHERE p.identifier = ANY(:identifiers)")
# What was reported meanwhile stays: a delivery is told only of what is still on its way.
DELIVERED = text("""
    INSERT INTO stripe_steps (identifier, step, at, code, reference)
    SELECT i, 'delivered', :at, :code, :reference FROM unnest(CAST(:identifiers AS text[])) AS i
    WHERE coalesce((SELECT s.step FROM stripe_steps s WHERE s.identifier = i AND s.step <> 'checked'
                    ORDER BY s.id DESC LIMIT 1), 'intended') IN ('intended', 'cancelling')
    RETURNING identifier
""")
