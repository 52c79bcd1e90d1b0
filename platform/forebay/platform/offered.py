"""What an operator may name: the models and tiers of the configuration (pure).

One rule, wherever one is granted or set (projects, limits): a name must be in the configuration, or stand there
already, so that what has left the configuration does not get in the way of other changes. Of what the configuration
says nothing, as an administrator's without models, every name is taken.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from forebay.platform.catalogue import names_of
from forebay.platform.config.model import Config
from forebay.platform.config.nearest import nearest
from forebay.platform.errors import ApiError, invalid
from forebay.platform.tiers import table_of

MOST = 1000  # models of a project
_LISTED = 30  # in a refusal


class Offered(Struct, frozen=True):
    """`models`: each one's name, by itself and its aliases. `tiers`: in their order. Without any, all are taken."""

    models: Mapping[str, str] = {}
    tiers: Sequence[str] = ()

    def called(self, model: str) -> str:
        """By the catalogue's name, since an alias holds for nothing; `model` itself, where that has no such name."""
        if len(model) > 128 or not model.isprintable():
            raise invalid("a model's name has up to 128 printable characters", param="model")
        return self.models.get(model, model)

    def model(self, name: str, standing: Collection[str], param: str = "model") -> str:
        """By the catalogue's name. `standing`: those that are there already."""
        found = self.called(name)
        if self.models and name not in self.models and name not in standing:
            raise _unknown("model", name, list(self.models), _with_aliases(self.models), param)
        return found

    def project_models(self, names: Iterable[str] | None, standing: Collection[str] | None = None) -> list[str] | None:
        """Sorted and unique, by the catalogue's names."""
        if names is None:
            return None
        wanted = set(names)
        if len(wanted) > MOST or any(not 1 <= len(name) <= 128 or not name.isprintable() for name in wanted):
            raise invalid(f"models: up to {MOST} names of 1 to 128 printable characters", param="models")
        return sorted({self.model(name, standing or (), "models") for name in sorted(wanted)})

    def project_tiers(self, names: Iterable[str] | None, standing: Collection[str] | None = None) -> list[str] | None:
        """Unique, and in the order of the configuration."""
        if names is None:
            return None
        wanted = set(names)
        undeclared = sorted(wanted.difference(self.tiers))
        for name in undeclared:
            if not 1 <= len(name) <= 128 or not name.isprintable():
                raise invalid("a tier's name has 1 to 128 printable characters", param="tiers")
            if self.tiers and name not in (standing or ()):
                raise _unknown("tier", name, self.tiers, self.tiers, "tiers")
        return [name for name in self.tiers if name in wanted] + undeclared


def offered_of(config: Config) -> Offered:
    """A configuration with models and without tiers has the one that is called default; one without either says nothing
    of them."""
    return Offered(names_of(config), table_of(config).names if config.models or config.tiers else ())


def _unknown(what: str, name: str, names: Sequence[str], shown: Sequence[str], param: str) -> ApiError:
    found = nearest(name, names)
    listed = ", ".join(shown[:_LISTED]) + (f" and {len(shown) - _LISTED} more" if len(shown) > _LISTED else "")
    hint = f"did you mean {found}? The {what}s are {listed}" if found else f"the {what}s are {listed}"
    return invalid(f"there is no {what} {name[:64]!r}; {hint}", param=param, code=f"invalid_{what}")


def _with_aliases(models: Mapping[str, str]) -> list[str]:
    aliases: dict[str, list[str]] = {}
    for name, model in models.items():
        aliases.setdefault(model, []).extend([name] if name != model else [])
    return [f"{model} ({', '.join(also)})" if also else model for model, also in sorted(aliases.items())]
