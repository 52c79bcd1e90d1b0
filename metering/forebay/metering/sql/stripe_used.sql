-- The ledger's tokens since :since, by what meters count: with the meter and the customer that they are mapped to.
-- A null is mapped to nothing; what is mapped to '' is not billed through Stripe.
WITH meters AS (
    SELECT m.*, lead(m.effective_from) OVER (
        PARTITION BY m.model, m.tier, m.token_class ORDER BY m.effective_from) AS effective_until
    FROM stripe_meters m
), customers AS (
    SELECT c.*, lead(c.effective_from) OVER (PARTITION BY c.tenant_id ORDER BY c.effective_from) AS effective_until
    FROM stripe_customers c
), used AS (
    SELECT h.tenant_id, h.model, h.tier_used, h.charge_hour AS hour, v.token_class, sum(v.tokens) AS tokens
    FROM usage_hourly h CROSS JOIN LATERAL (VALUES
        ('input_uncached', h.billable_input_uncached), ('cache_read', h.billable_cache_read),
        ('cache_write', h.billable_cache_write), ('output', h.billable_output)
    ) AS v (token_class, tokens)
    WHERE v.tokens <> 0 AND h.charge_hour >= :since AND h.period >= CAST(date_trunc('month', CAST(:since AS timestamptz) AT TIME ZONE 'UTC') AS date)
    GROUP BY h.tenant_id, h.model, h.tier_used, h.charge_hour, v.token_class
)
SELECT
    u.tenant_id, u.model, u.tier_used AS tier, u.token_class, u.hour, u.tokens, c.customer_id,
    coalesce(own.event_name, shared.event_name) AS event_name
FROM used u
LEFT JOIN meters own ON own.model = u.model AND own.tier = u.tier_used AND own.tier <> ''
    AND own.token_class = u.token_class
    AND u.hour >= own.effective_from AND (own.effective_until IS NULL OR u.hour < own.effective_until)
LEFT JOIN meters shared ON shared.model = u.model AND shared.tier = '' AND shared.token_class = u.token_class
    AND u.hour >= shared.effective_from AND (shared.effective_until IS NULL OR u.hour < shared.effective_until)
LEFT JOIN customers c ON c.tenant_id = u.tenant_id
    AND u.hour >= c.effective_from AND (c.effective_until IS NULL OR u.hour < c.effective_until)
