"""Usage told to Stripe: the ledger's tokens as meter events of its customers, each exactly once."""

from forebay.metering.stripe.client import Api, RefusedError, StripeError, StripeMissingError
from forebay.metering.stripe.journal import Journal
from forebay.metering.stripe.mapping import BEGINNING, CustomerMapping, MappingError, Mappings, MeterMapping, fit
from forebay.metering.stripe.notices import ForgedError, Notice, opened
from forebay.metering.stripe.plan import Rules
from forebay.metering.stripe.reconcile import Difference, Reconciliation, Untold, reconcile
from forebay.metering.stripe.records import TOKEN_CLASSES, Posting, State, Unmapped
from forebay.metering.stripe.stream import Caller
from forebay.metering.stripe.sync import NOTICES, Held, Pass, Syncer

__all__ = [
    "BEGINNING",
    "NOTICES",
    "TOKEN_CLASSES",
    "Api",
    "Caller",
    "CustomerMapping",
    "Difference",
    "ForgedError",
    "Held",
    "Journal",
    "MappingError",
    "Mappings",
    "MeterMapping",
    "Notice",
    "Pass",
    "Posting",
    "Reconciliation",
    "RefusedError",
    "Rules",
    "State",
    "StripeError",
    "StripeMissingError",
    "Syncer",
    "Unmapped",
    "Untold",
    "fit",
    "opened",
    "reconcile",
]
