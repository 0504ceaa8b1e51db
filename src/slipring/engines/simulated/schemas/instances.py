"""Values that are valid for a JSON Schema, for the simulated engine to answer with.

Owns the search for a value: which branches of a schema to follow and what to propose there. Every
proposal is checked against the whole of its schema (see `validity`), so that what cannot be built
by design (`not`, `oneOf`, `if`) is found by trying. Schemas come from clients: all work is metered
and every level is bounded. Pure and deterministic.
"""

import copy
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from slipring.engines.simulated.schemas.patterns import PatternError, samples
from slipring.engines.simulated.schemas.scalars import Plains, numbers, span, strings
from slipring.engines.simulated.schemas.validity import KINDS, Document, Schema, SchemaError, frozen, kinds_of

_DEEPEST = 32  # levels of a value
_MOST_CONTAINED = 1_000  # items that one `contains` is given
_LOOPS = 2  # times that a reference may come up again below itself before the branch is given up
_SPARSE = 4  # the level below which nothing optional is proposed

_MOST_ROWS = 48  # ways to fill the same places of an array or an object
_NOTHING = object()

# Where nothing is asked of what an array or an object holds, it stays empty.
_SIMPLEST: dict[str, Iterable[Any]] = {
    "object": [{}],
    "array": [[]],
    "boolean": [True, False],
    "null": [None],
}

# The kind that a schema without a type is most likely about.
_HINTS = {
    **dict.fromkeys(("properties", "required", "additionalProperties", "minProperties"), "object"),
    **dict.fromkeys(("items", "prefixItems", "contains", "minItems", "maxItems"), "array"),
    **dict.fromkeys(("pattern", "format", "minLength", "maxLength"), "string"),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), "number"),
}


class Unsatisfiable(ValueError):
    """No value was found for the schema: it is contradictory, malformed or too costly."""


def instance(schema: object) -> object:
    """A value valid for the schema; a missing schema (None) is as good as an empty one."""
    search = _Search(Document({} if schema is None else schema))
    try:
        for value in search.values([search.document.root], _Spot()):
            return copy.deepcopy(value)
    except (SchemaError, PatternError) as error:
        raise Unsatisfiable(str(error)) from error
    except RecursionError as error:
        raise Unsatisfiable("the schema is nested too deeply") from error
    raise Unsatisfiable("no value was found that satisfies the schema")


@dataclass(frozen=True)
class _Spot:
    """Where the search is: the property, its level in the value, the references followed so far."""

    name: str = "text"
    level: int = 0
    refs: tuple[str, ...] = ("#",)

    def below(self, name: str) -> "_Spot":
        return replace(self, name=name or "text", level=self.level + 1)

    @property
    def looping(self) -> bool:
        return len(set(self.refs)) < len(self.refs)

    @property
    def sparse(self) -> bool:
        return self.looping or self.level > _SPARSE


class _Search:
    """Proposes values, the most natural first, and keeps those that hold."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def values(self, schemas: list[Schema], spot: _Spot) -> Iterator[Any]:
        """Values valid for all of the schemas; possibly none, possibly some of them twice."""
        if spot.level > _DEEPEST:
            return
        for plains, inner in self._alternatives(schemas, spot, [], []):
            for value in self._proposals(plains, inner):
                self.document.spend()
                if all(self.document.holds(value, schema) for schema in schemas):
                    yield value

    def _alternatives(
        self, schemas: list[Schema], spot: _Spot, plains: Plains, choices: list[list[Schema]]
    ) -> Iterator[tuple[Plains, _Spot]]:
        """Each way to take one branch of every choice, as the plain schemas that then must hold."""
        gathered = self._gathered(schemas, spot, plains)
        if gathered is None:
            return
        plains, spot, further = gathered
        choices = choices + further
        if not choices:
            yield plains, spot
            return
        # Branches that lead back to where we come from go last, so that recursion ends.
        for branch in sorted(choices[0], key=lambda it: self.document.mentions(it, spot.refs)):
            yield from self._alternatives([branch], spot, plains, choices[1:])

    def _gathered(
        self, schemas: list[Schema], spot: _Spot, plains: Plains
    ) -> tuple[Plains, _Spot, list[list[Schema]]] | None:
        """All that must hold by `allOf` and `$ref`, and the choices therein; None if it cannot."""
        pending, plains, choices = list(schemas), list(plains), list[list[Schema]]()
        known, followed = set(map(id, plains)), list[str]()
        while pending:
            self.document.spend()
            schema = self.document.vetted(pending.pop(0))
            if schema is False:
                return None
            if schema is True or id(schema) in known:
                continue
            known.add(id(schema))
            plains.append(schema)
            choices += _choices(schema)
            pending += schema.get("allOf", ())
            if "$ref" in schema and schema["$ref"] not in followed:
                target = self.document.resolved(schema["$ref"])
                if id(target) not in known:
                    followed.append(schema["$ref"])
                    pending.append(target)
        spot = replace(spot, refs=(*spot.refs, *followed))
        if any(spot.refs.count(ref) > 1 + _LOOPS for ref in followed):
            return None
        return plains, spot, choices

    def _proposals(self, plains: Plains, spot: _Spot) -> Iterator[Any]:
        fixed = [[plain["const"]] for plain in plains if "const" in plain]
        fixed += [plain["enum"] for plain in plains if "enum" in plain]
        if fixed:
            yield from fixed[0]
            return
        for kind in _likely_kinds(plains, spot):
            yield from self._of_kind(kind, plains, spot)

    def _of_kind(self, kind: str, plains: Plains, spot: _Spot) -> Iterable[Any]:
        match kind:
            case "object" if plains:
                return self._objects(plains, spot)
            case "array" if plains:
                return self._arrays(plains, spot)
            case "string":
                return strings(plains, spot.name, self.document.spend)
            case "integer" | "number":
                return numbers(plains, whole=kind == "integer")
            case _:
                return _SIMPLEST[kind]

    def _arrays(self, plains: Plains, spot: _Spot) -> Iterator[list[Any]]:
        wanted = [plain["contains"] for plain in plains for _ in range(_contained(plain))]
        fewest, most = span(plains, "minItems", "maxItems")
        unique = any(plain.get("uniqueItems") for plain in plains)
        for length in self._lengths(plains, spot, max(fewest, len(wanted)), len(wanted)):
            if length > most:
                continue
            extras = itertools.chain(itertools.repeat(True, length - len(wanted)), wanted)
            places = [self._item(plains, at, extra) for at, extra in enumerate(extras)]
            rows = _rows([self.values(place, spot.below(spot.name)) for place in places], unique)
            found = next(rows, None)
            if found is None and length == fewest and not wanted:
                return  # a longer array would need the same items
            yield from itertools.chain([] if found is None else [found], rows)

    def _lengths(self, plains: Plains, spot: _Spot, fewest: int, wanted: int) -> Iterable[int]:
        """The lengths worth trying: one item rather than none where items are described."""
        prefix = max((len(plain.get("prefixItems", ())) for plain in plains), default=0)
        items = [plain["items"] for plain in plains if plain.get("items")]
        natural = max(fewest, prefix, 1 if items else 0)
        if spot.sparse or any(self.document.mentions(item, spot.refs) for item in items):
            natural = fewest
        # The last of them, as what must be contained may not fit where a prefix describes items.
        return dict.fromkeys((natural, fewest, fewest + 1, prefix + wanted))

    def _item(self, plains: Plains, at: int, extra: Schema) -> list[Schema]:
        self.document.spend()
        return [*(self.document.for_index(plain, at) for plain in plains), extra]

    def _objects(self, plains: Plains, spot: _Spot) -> Iterator[dict[str, Any]]:
        required = list(dict.fromkeys(it for plain in plains for it in plain.get("required", ())))
        for names in self._name_sets(plains, spot, required):
            members = [self.values(self._member(plains, name), spot.below(name)) for name in names]
            rows = _rows(members, unique=False)
            found = next(rows, None)
            if found is None and names == required:
                return  # a larger object would need the same members
            for row in itertools.chain([] if found is None else [found], rows):
                yield dict(zip(names, row, strict=True))

    def _member(self, plains: Plains, name: str) -> list[Schema]:
        return [schema for plain in plains for schema in self.document.for_key(plain, name)]

    def _name_sets(self, plains: Plains, spot: _Spot, required: list[str]) -> Iterator[list[str]]:
        """The sets of properties worth trying: the required ones or, failing those, the first."""
        fewest, _ = span(plains, "minProperties", "maxProperties")
        if required and len(required) >= fewest:
            yield required  # the usual case, before looking at what is optional
        optional = self._optional(plains, spot, required)
        free = self._free_names(plains, spot, {*required, *optional})
        lacking = max(0, fewest - len(required))
        base = required + list(itertools.islice(itertools.chain(optional, free), lacking))
        if not base and not spot.sparse:
            yield optional[:1]
        if base != required or not required:
            yield base
        yield required + optional

    def _optional(self, plains: Plains, spot: _Spot, required: list[str]) -> list[str]:
        """The other names that are declared, those which do not lead back to here first."""
        declared = dict.fromkeys(name for plain in plains for name in plain.get("properties", ()))
        others = {name: self._member(plains, name) for name in declared.keys() - set(required)}
        allowed = [name for name in declared if False not in others.get(name, [False])]

        def leads_back(name: str) -> bool:
            return any(self.document.mentions(schema, spot.refs) for schema in others[name])

        return sorted(allowed, key=leads_back)

    def _free_names(self, plains: Plains, spot: _Spot, taken: set[str]) -> Iterator[str]:
        """Names that are not declared, but that the schema lets one make up."""
        keys = [key for plain in plains for key in plain.get("patternProperties", ())]
        rules = [plain["propertyNames"] for plain in plains if "propertyNames" in plain]
        sampled = (samples(key, 0, self.document.spend) for key in keys)
        made_up = self.values([{"type": "string"}, *rules], spot.below("key"))
        for name in itertools.chain(*sampled, made_up):
            named_well = name not in taken and all(self.document.holds(name, it) for it in rules)
            if named_well and False not in self._member(plains, name):
                taken.add(name)
                yield name


def _choices(schema: dict[str, Any]) -> Iterator[list[Schema]]:
    """The branches of the schema, one list for each place where one has to be taken."""
    for key in ("anyOf", "oneOf"):
        if key in schema:
            yield schema[key]
    if "if" in schema:
        met = {"allOf": [schema["if"], schema.get("then", True)]}
        yield [met, {"allOf": [{"not": schema["if"]}, schema.get("else", True)]}]
    dependents = {key: {"required": it} for key, it in schema.get("dependentRequired", {}).items()}
    for name, dependent in [*dependents.items(), *schema.get("dependentSchemas", {}).items()]:
        present = {"required": [name]}
        yield [{"not": present}, {"allOf": [present, dependent]}]


def _likely_kinds(plains: Plains, spot: _Spot) -> list[str]:
    """The kinds that all of the schemas allow, the likeliest first."""
    typed = [kinds_of(plain["type"]) for plain in plains if "type" in plain]
    hinted = [_HINTS[key] for plain in plains for key in plain if key in _HINTS]
    order = typed[0] if typed else [*hinted, "string" if spot.level else "object"]
    wider = {"integer": "number"}
    kinds = [it for it in KINDS if all(it in ks or wider.get(it) in ks for ks in typed)]
    if "number" in kinds:
        kinds.remove("integer")  # its turn would only repeat that of numbers

    def rank(kind: str) -> tuple[bool, bool, int]:
        nests = kind in ("array", "object")
        place = order.index(kind) if kind in order else len(order)
        return spot.looping and nests, kind == "null", place

    return sorted(kinds, key=rank)


def _contained(plain: dict[str, Any]) -> int:
    """How many items must match `contains`, as far as it is worth counting."""
    return min(int(plain.get("minContains", 1)), _MOST_CONTAINED) if "contains" in plain else 0


def _rows(children: list[Iterator[Any]], unique: bool) -> Iterator[list[Any]]:
    """Rows of one value from each child: the first of all, the second of all, and so on.

    A child that has no more repeats its last. Within a row no value comes twice if `unique`.
    """
    row: list[Any] = []
    for _ in range(_MOST_ROWS):
        earlier, row, fresh = row, [], False
        taken: set[object] = set()
        for child in children:
            value = next((it for it in child if not unique or frozen(it) not in taken), _NOTHING)
            if value is _NOTHING and not earlier:
                return
            fresh = fresh or value is not _NOTHING
            row.append(earlier[len(row)] if value is _NOTHING else value)
            taken.add(frozen(row[-1]))
        if fresh or not children:
            yield row
        if not fresh:
            return
