-- Postings with their state, which is the newest of their steps, and since when a repeat of them is harmless.
SELECT
    p.identifier, p.tenant_id, p.event_name, p.hour, p.seq, p.customer_id, p.kind, p.value, p.billed_at, p.created_at,
    coalesce(checked.at, p.created_at) AS safe_from,
    coalesce(newest.step, 'intended') AS state, newest.at AS changed_at,
    coalesce(newest.code, '') AS code, coalesce(newest.reference, '') AS reference
FROM stripe_postings p
LEFT JOIN LATERAL (
    SELECT s.step, s.at, s.code, s.reference FROM stripe_steps s
    WHERE s.identifier = p.identifier AND s.step <> 'checked' ORDER BY s.id DESC LIMIT 1
) newest ON true
LEFT JOIN LATERAL (
    SELECT max(s.at) AS at FROM stripe_steps s WHERE s.identifier = p.identifier AND s.step = 'checked'
) checked ON true
