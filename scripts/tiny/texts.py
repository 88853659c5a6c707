"""Texts, lists and records that a user asks for, and then asks to change.

A text is made of named values and of items, and rendered by its kind. A change alters a value or
the items and renders them again: so what the second answer has to be is known to the letter.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tiny import words
from tiny.turns import Turn
from tiny.words import Draw

Render = Callable[[Mapping[str, str], tuple[str, ...]], str]


@dataclass(frozen=True)
class Text:
    """A text as its parts.

    Attributes:
        request: the user's message that asks for it.
        render: makes the text of the values and the items.
        values: by what the user calls them; "name" is a person's.
        others: for values other than the name that may be changed, another value each.
        items: lines that can be added to; reordered, where there are at least two.
        new_item: one that is not among `items`.
        changed_item: one of `items`, and the same with another number.
    """

    request: str
    render: Render
    values: Mapping[str, str]
    others: Mapping[str, str]
    new_item: str
    items: tuple[str, ...] = ()
    changed_item: tuple[str, str] | None = None
    lower: bool = field(default=False)

    def __str__(self) -> str:
        text = self.render(self.values, self.items)
        return text.lower() if self.lower else text

    def having(self, name: str, value: str) -> "Text":
        """The text with another value."""
        return replace(self, values={**self.values, name: value})


Changed = tuple[str, Text]
"""The user's message that asks for a change, and the changed text."""


@dataclass(frozen=True)
class Change:
    """A kind of change, and which texts it can be made to."""

    make: Callable[[Draw, Text], Changed]
    fits: Callable[[Text], bool] = lambda text: True


def conversation(draw: Draw) -> tuple[str, list[Turn]]:
    """The kind of change, and two turns: the request, and the change."""
    text = draw.one(KINDS)(draw)
    change = draw.one([name for name, kind in CHANGES.items() if kind.fits(text)])
    return change, _turns(draw, text, change)


def changed_text(draw: Draw, change: str) -> list[Turn]:
    """The same for a given kind of change."""
    text = draw.one(KINDS)(draw)
    while not CHANGES[change].fits(text):
        text = draw.one(KINDS)(draw)
    return _turns(draw, text, change)


def _turns(draw: Draw, text: Text, change: str) -> list[Turn]:
    wish, changed = CHANGES[change].make(draw, text)
    wish += draw.one(("", " Leave the rest as it is.", " Give me the whole text again."))
    return [Turn(text.request, str(text)), Turn(wish, str(changed))]


def record(draw: Draw) -> Text:
    """Lines of labels and values."""
    values = {
        "name": draw.name(),
        "job": draw.one(words.JOBS),
        "year": str(draw.number(1950, 2009)),
        "city": draw.one(words.CITIES),
        "hobby": draw.one(words.HOBBIES),
        "room": str(draw.number(100, 999)),
        "phone": str(draw.number(1000, 9999)),
        "team": draw.one(words.COLOURS),
        "desk": draw.one(words.PLACES),
    }
    listed = ", ".join(f"{label} {value}" for label, value in values.items() if label != "name")
    request = draw.one(
        (
            f"Write a record for {values['name']}: {listed}.",
            f"I need the record of {values['name']}: {listed}.",
            f"Make a record. Name {values['name']}, {listed}.",
        )
    )
    other = {
        "job": draw.one(words.JOBS),
        "year": str(draw.number(1950, 2009)),
        "city": draw.one(words.CITIES),
        "hobby": draw.one(words.HOBBIES),
        "room": str(draw.number(100, 999)),
        "phone": str(draw.number(1000, 9999)),
        "team": draw.one(words.COLOURS),
    }
    new_item = f"Key: {draw.number(10, 99)}"
    return Text(request, _record, values, _different(other, values), new_item)


def _record(values: Mapping[str, str], items: tuple[str, ...]) -> str:
    lines = [f"{label.capitalize()}: {value}" for label, value in values.items()]
    return "\n".join([f"Record of {values['name']}", *lines, *items])


def letter(draw: Draw) -> Text:
    """An invitation in sentences."""
    name = draw.name()
    values = {
        "name": name,
        "event": draw.one(words.EVENTS),
        "city": draw.one(words.CITIES),
        "day": draw.one(words.DAYS),
        "time": _time(draw),
        "guests": str(draw.number(10, 99)),
        "food": draw.one(words.FOODS),
        "phone": str(draw.number(1000, 9999)),
        "sender": draw.name(name),
    }
    request = draw.one(
        (
            "Write a letter from {sender} to {name} about the {event} in {city} on {day} at "
            "{time}, with {guests} guests, {food}, and phone {phone}.",
            "Invite {name} to the {event} in {city}. It is on {day} at {time}. There are {guests} "
            "guests, the food is {food}, the phone is {phone}, and the sender is {sender}.",
        )
    ).format(**values)
    other = {
        "event": draw.one(words.EVENTS),
        "city": draw.one(words.CITIES),
        "day": draw.one(words.DAYS),
        "time": _time(draw),
        "guests": str(draw.number(10, 99)),
        "phone": str(draw.number(1000, 9999)),
    }
    new_item = f"P.S. Bring {draw.number(2, 99)} {draw.one(words.THINGS)}."
    return Text(request, _letter, values, _different(other, values), new_item)


def _letter(values: Mapping[str, str], items: tuple[str, ...]) -> str:
    text = (
        "Dear {name},\n"
        "you are invited to the {event} in {city}. It is on {day} at {time}, and we expect "
        "{guests} guests. There will be {food} for all of us. If you have no time on {day}, "
        "please call me: my phone is {phone}. I hope to see you at the {event}.\n"
        "Yours,\n{sender}"
    ).format(**values)
    return "\n".join([text, *items])


def shopping_list(draw: Draw) -> Text:
    """Things and how many of them."""
    values = {"name": draw.name(), "event": draw.one(words.EVENTS)}
    things = draw.some(words.FOODS + words.THINGS, draw.rng.randint(7, 10))
    items = tuple(f"{draw.number(2, 99)} {thing}" for thing in things)
    *items_there, new_item = items
    request = draw.one(
        (
            "Make a list of {name} for the {event}: {items}.",
            "Write down what {name} needs for the {event}: {items}.",
            "{name} needs a list for the {event}. Put {items} on it.",
        )
    ).format(**values, items=", ".join(items_there))
    others = _different({"event": draw.one(words.EVENTS)}, values)
    changed = _renumbered(draw, draw.one(items_there))
    return Text(request, _list, values, others, new_item, tuple(items_there), changed)


def _list(values: Mapping[str, str], items: tuple[str, ...]) -> str:
    title = "List of {name} for the {event}:".format(**values)
    return "\n".join([title, *(f"- {item}" for item in items)])


def plan(draw: Draw) -> Text:
    """What somebody does in a day, a sentence each."""
    values = {"name": draw.name(), "day": draw.one(words.DAYS)}
    chores = draw.some(words.CHORES, draw.rng.randint(6, 8))
    *items, new_item = (f"{_time(draw)} {chore}" for chore in chores)
    request = draw.one(
        (
            "Plan {day} for {name}: {items}.",
            "Write a plan of {name} for {day}: {items}.",
            "What does {name} do on {day}? {items}. Write the plan.",
        )
    ).format(**values, items=", ".join(items))
    others = _different({"day": draw.one(words.DAYS)}, values)
    item = draw.one(items)
    changed = item, f"{_time(draw)} {item.partition(' ')[2]}"
    return Text(request, _plan, values, others, new_item, tuple(items), changed)


def _plan(values: Mapping[str, str], items: tuple[str, ...]) -> str:
    lines = []
    for item in items:
        time, _, chore = item.partition(" ")
        lines.append(f"At {time} {values['name']} {chore}.")
    return "\n".join(["Plan for {day}".format(**values), *lines])


def recipe(draw: Draw) -> Text:
    """Ingredients and steps."""
    foods = draw.some(words.FOODS, 6)
    values = {
        "name": draw.name(),
        "people": str(draw.number(2, 60)),
        "water": str(draw.number(100, 999)),
        "minutes": str(draw.number(5, 90)),
        "main": foods[0],
    }
    *items, new_item = (f"{draw.number(2, 99)} {food}" for food in foods)
    request = draw.one(
        (
            "Write a recipe by {name} for a soup of {main} for {people} people, with {items}, "
            "{water} grams of water, cooked for {minutes} minutes.",
            "{name} cooks a soup of {main} for {people} people. It takes {items} and {water} grams "
            "of water, and is cooked for {minutes} minutes. Write the recipe.",
        )
    ).format(**values, items=", ".join(items))
    other = {
        "people": str(draw.number(2, 60)),
        "water": str(draw.number(100, 999)),
        "minutes": str(draw.number(5, 90)),
    }
    changed = _renumbered(draw, draw.one(items))
    others = _different(other, values)
    return Text(request, _recipe, values, others, new_item, tuple(items), changed)


def _recipe(values: Mapping[str, str], items: tuple[str, ...]) -> str:
    text = (
        "Soup of {main} by {name}\n"
        "For {people} people you need:\n"
        "{items}\n"
        "Wash everything and cut it into small pieces. Put the {main} into a pot with {water} "
        "grams of water. Add the rest and cook it for {minutes} minutes. Serve the soup hot to "
        "the {people} people."
    )
    return text.format(**values, items="\n".join(f"- {item}" for item in items))


KINDS: tuple[Callable[[Draw], Text], ...] = (record, letter, shopping_list, plan, recipe)


def another_name(draw: Draw, text: Text) -> Changed:
    """A person's name is replaced everywhere."""
    old = text.values["name"]
    new = draw.name(old, text.values.get("sender", ""))
    wish = draw.one(("Use the name {} instead of {}.", "Write {} where it says {}."))
    return wish.format(new, old), text.having("name", new)


def another_number(draw: Draw, text: Text) -> Changed:
    """A number is replaced: an item's, or that of a value."""
    if text.changed_item:
        old, new = text.changed_item
        items = tuple(new if item == old else item for item in text.items)
        return f"Change {old} to {new}.", replace(text, items=items)
    name = draw.one([name for name in text.others if text.values[name][0].isdigit()])
    old, new = text.values[name], text.others[name]
    return f"Change the {name} from {old} to {new}.", text.having(name, new)


def lower_case(draw: Draw, text: Text) -> Changed:
    """Every capital letter is replaced."""
    wish = draw.one(("Write all of it in lower case.", "Use small letters only."))
    return wish, replace(text, lower=True)


def added_item(draw: Draw, text: Text) -> Changed:
    """There is one more line."""
    wish = draw.one(("Add this at the end: {}", "Add one more: {}"))
    return wish.format(text.new_item), replace(text, items=(*text.items, text.new_item))


def other_order(draw: Draw, text: Text) -> Changed:
    """One of the items becomes the first."""
    item = draw.one(text.items[1:])
    items = (item, *(other for other in text.items if other != item))
    return draw.one(("Put {} first.", "Start with {}.")).format(item), replace(text, items=items)


def fixed_error(draw: Draw, text: Text) -> Changed:
    """A value is wrong; the message does not mention the old one."""
    name = draw.one(list(text.others))
    wish = draw.one(("There is an error: the {} is {}.", "Fix an error. The {} is {}."))
    return wish.format(name, text.others[name]), text.having(name, text.others[name])


CHANGES = {
    "name": Change(another_name),
    "number": Change(another_number),
    "lower_case": Change(lower_case),
    "add": Change(added_item),
    "reorder": Change(other_order, fits=lambda text: len(text.items) > 1),
    "fix": Change(fixed_error, fits=lambda text: bool(text.others)),
}


def _time(draw: Draw) -> str:
    return f"{draw.rng.randint(6, 21)}:{draw.rng.randrange(0, 60, 5):02}"


def _renumbered(draw: Draw, item: str) -> tuple[str, str]:
    number, _, thing = item.partition(" ")
    return item, f"{draw.number(2, 99, int(number))} {thing}"


def _different(others: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    return {name: other for name, other in others.items() if other != values[name]}
