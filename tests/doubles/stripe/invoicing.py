"""Prices, subscriptions and invoices as far as meters need them: a subscription is billed by calendar months (UTC), and
an invoice's line is a meter's sum at a price. Credit notes take from invoices that are final."""

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from tests.doubles.stripe.metering import Metering, RefusedError


@dataclass
class Invoicing:
    now: Callable[[], float]
    metering: Metering
    prices: dict[str, dict[str, Any]] = field(default_factory=dict)
    subscriptions: dict[str, dict[str, Any]] = field(default_factory=dict)
    invoices: dict[str, dict[str, Any]] = field(default_factory=dict)
    credit_notes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def create_price(self, given: dict[str, Any]) -> dict[str, Any]:
        meter = given.get("recurring", {}).get("meter")
        if meter is not None and meter not in self.metering.meters:
            raise RefusedError(f"No such meter: {meter}", code="resource_missing")
        made = {"id": f"price_{len(self.prices) + 1}", "object": "price", "active": True, "livemode": False, **given}
        if "unit_amount_decimal" in made:
            made["unit_amount_decimal"] = str(made["unit_amount_decimal"])
        self.prices[made["id"]] = made
        return made

    def subscribe(self, given: dict[str, Any]) -> dict[str, Any]:
        for item in given["items"]:
            if item["price"] not in self.prices:
                raise RefusedError(f"No such price: {item['price']}", code="resource_missing")
        made = {"id": f"sub_{len(self.subscriptions) + 1}", "object": "subscription", "status": "active", **given}
        self.subscriptions[made["id"]] = made
        return made

    def bill(self, customer: str, start: int, end: int, *, status: str = "open") -> dict[str, Any]:
        """Make the invoice of a month. Final, unless its status is `draft`."""
        number = len(self.invoices) + 1
        mine = [one for one in self.subscriptions.values() if one["customer"] == customer]
        prices = [self.prices[item["price"]] for one in mine for item in one["items"]]
        lines = [self._line(f"il_{number}_{i}", price, customer, start, end) for i, price in enumerate(prices)]
        made = {
            "id": f"in_{number}", "object": "invoice", "customer": customer, "status": status, "livemode": False,
            "created": int(self.now()), "period_start": start, "period_end": end, "currency": "usd",
            "total": sum(line["amount"] for line in lines), "lines_": lines,
        }  # fmt: skip
        self.invoices[made["id"]] = made
        return made

    def _line(self, name: str, price: dict[str, Any], customer: str, start: int, end: int) -> dict[str, Any]:
        quantity = max(0, int(self.metering.total(price["recurring"]["meter"], customer, start, end)))
        return {
            "id": name, "object": "line_item", "quantity": quantity, "amount": _cents(quantity, price),
            "period": {"start": start, "end": end}, "currency": "usd",
            "pricing": {"type": "price_details", "price_details": {"price": price["id"], "product": "prod_1"}},
        }  # fmt: skip

    def credit(self, given: dict[str, Any], *, preview: bool = False) -> dict[str, Any]:
        invoice = self.invoices.get(given["invoice"])
        if invoice is None:
            raise RefusedError(f"No such invoice: {given['invoice']}", status=404, code="resource_missing")
        if invoice["status"] not in {"open", "paid"}:
            raise RefusedError("The invoice is not finalized.", code="invoice_not_finalized")
        total = sum(self._credited(invoice, line) for line in given.get("lines", []))
        if not preview and total <= 0:
            raise RefusedError("A credit note must be of more than 0.", code="amount_too_small")
        if not preview and invoice["status"] == "paid":
            put = sum(given.get(name, 0) for name in ("credit_amount", "refund_amount", "out_of_band_amount"))
            if put != total:
                raise RefusedError(f"The amounts must sum to {total}.", code="credit_note_amounts_differ")
        made = {
            "id": f"cn_{len(self.credit_notes) + 1}", "object": "credit_note", "invoice": invoice["id"],
            "total": total, "amount": total, "status": "issued", "metadata": {}, "currency": "usd", "livemode": False,
            **{name: value for name, value in given.items() if name != "lines"}, "lines_": given.get("lines", []),
        }  # fmt: skip
        if not preview:
            self.credit_notes[made["id"]] = made
        return made

    def credited(self, line_id: str) -> int:
        """Of a line, by all credit notes."""
        return sum(
            line["quantity"] for note in self.credit_notes.values() for line in note["lines_"]
            if line["invoice_line_item"] == line_id
        )  # fmt: skip

    def _credited(self, invoice: dict[str, Any], given: dict[str, Any]) -> int:
        line = next((one for one in invoice["lines_"] if one["id"] == given.get("invoice_line_item")), None)
        if line is None:
            raise RefusedError("No such line of this invoice.", code="resource_missing")
        if given["quantity"] < 1 or given["quantity"] + self.credited(line["id"]) > line["quantity"]:
            raise RefusedError("More is credited than was billed.", code="credit_note_quantity_too_high")
        return _cents(given["quantity"], self.prices[line["pricing"]["price_details"]["price"]])


def _cents(quantity: int, price: dict[str, Any]) -> int:
    exact = Decimal(quantity) * Decimal(price.get("unit_amount_decimal", price.get("unit_amount", 0)))
    return int(exact.quantize(Decimal(1), rounding=ROUND_HALF_UP))
