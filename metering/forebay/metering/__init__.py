"""What was used, by whom, and what it costs: usage records, their spool, the ledger, and prices."""

from forebay.metering.books import BookError, Books, Closing, Correction, Difference, Period, named, period_of
from forebay.metering.ledger import Ledger, PriceConflictError
from forebay.metering.posting import Posting
from forebay.metering.prices import Price, choose, rounded
from forebay.metering.records import Attempt, Checkpoint, Quantities, Status, TerminatedBy, UsageRecord
from forebay.metering.report import DIMENSIONS, Line, UsageQuery, total
from forebay.metering.shipper import Shipper
from forebay.metering.spool import Spool
from forebay.metering.spooldir import SpoolInUseError
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
    "Ledger",
    "Line",
    "Period",
    "Posting",
    "Price",
    "PriceConflictError",
    "Quantities",
    "Shipper",
    "Spool",
    "SpoolInUseError",
    "Status",
    "TerminatedBy",
    "UsageQuery",
    "UsageRecord",
    "billable",
    "choose",
    "is_measured",
    "named",
    "period_of",
    "quantities",
    "rounded",
    "total",
]
