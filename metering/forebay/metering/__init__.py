"""What was used, by whom, and what it costs: usage records, their spool, the ledger, and prices."""

from forebay.metering.books import BookError, Books, Closing, Correction, Difference, Period, named, period_of
from forebay.metering.ledger import Ledger, PriceConflictError
from forebay.metering.posting import Posting
from forebay.metering.prices import Price, choose, in_force, rounded
from forebay.metering.pricing.amounts import RefusedError
from forebay.metering.pricing.plans import Included, Plan
from forebay.metering.pricing.preview import Rerated, rerated
from forebay.metering.pricing.store import Pricing
from forebay.metering.records import Attempt, Checkpoint, Quantities, Status, TerminatedBy, UsageRecord
from forebay.metering.report import DIMENSIONS, Line, UsageQuery, total
from forebay.metering.shipper import Shipper
from forebay.metering.spool import Spool
from forebay.metering.spooldir import SpoolInUseError
from forebay.metering.statements.build import Line as StatementLine
from forebay.metering.statements.build import Statement
from forebay.metering.statements.monthly import Kind, StatementError
from forebay.metering.statements.store import Statements, Told
from forebay.metering.usage import billable, is_measured, quantities

__all__ = [
    "DIMENSIONS",
    "Attempt",
    "BookError",
    "Books",
    "Checkpoint",
    "Closing",
    "Correction",
    "Difference",
    "Included",
    "Kind",
    "Ledger",
    "Line",
    "Period",
    "Plan",
    "Posting",
    "Price",
    "PriceConflictError",
    "Pricing",
    "Quantities",
    "RefusedError",
    "Rerated",
    "Shipper",
    "Spool",
    "SpoolInUseError",
    "Statement",
    "StatementError",
    "StatementLine",
    "Statements",
    "Status",
    "TerminatedBy",
    "Told",
    "UsageQuery",
    "UsageRecord",
    "billable",
    "choose",
    "in_force",
    "is_measured",
    "named",
    "period_of",
    "quantities",
    "rerated",
    "rounded",
    "total",
]
