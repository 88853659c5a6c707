"""Words for the conversations, and random draws that hold some combinations out."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Choice = TypeVar("Choice")

FIRST_NAMES = (
    *("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jonas", "Kira"),
    *("Leo", "Maria", "Nina", "Oscar", "Paula", "Quinn", "Rosa", "Simon", "Tara", "Uma", "Victor"),
    *("Wendy", "Xenia", "Yara", "Zoe", "Adam", "Bella", "Carl", "Diana", "Erik", "Fiona", "George"),
    *("Helen", "Ivan", "Julia", "Karl", "Laura", "Martin", "Nora", "Olga", "Peter", "Rita", "Sam"),
)
LAST_NAMES = (
    *("Adler", "Berg", "Cole", "Dahl", "Engel", "Fox", "Gray", "Hale", "Ivers", "Jung", "Kent"),
    *("Lang", "Moss", "Nash", "Olsen", "Price", "Quist", "Reed", "Stone", "Torres", "Urban"),
    *("Vogel", "Wells", "York", "Zeller", "Abbot", "Brook", "Carter", "Drew", "Ellis", "Frost"),
    *("Grant", "Hill", "Irwin", "Joyce", "Keller", "Lopez", "Mills", "North", "Owens", "Parker"),
)
CITIES = (
    *(
        "Oslo",
        "Rome",
        "Paris",
        "Berlin",
        "Madrid",
        "Lisbon",
        "Vienna",
        "Prague",
        "Dublin",
        "Athens",
    ),
    *("Cairo", "Tokyo", "Lima", "Boston", "Chicago", "Denver", "Geneva", "Hamburg", "Kyoto"),
    *("London", "Milan", "Naples", "Porto", "Quebec", "Riga", "Seoul", "Turin", "Warsaw"),
)
JOBS = (
    *("nurse", "teacher", "baker", "pilot", "farmer", "lawyer", "painter", "cook", "driver"),
    *("doctor", "gardener", "judge", "librarian", "mechanic", "musician", "plumber", "tailor"),
)
HOBBIES = (
    *("chess", "tennis", "cooking", "reading", "running", "sailing", "singing", "skiing"),
    *("dancing", "drawing", "fishing", "football", "hiking", "knitting", "painting", "swimming"),
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
COLOURS = ("red", "blue", "green", "black", "white", "yellow", "brown", "orange", "purple", "grey")
FOODS = (
    *("apples", "pears", "plums", "carrots", "onions", "potatoes", "tomatoes", "beans", "lemons"),
    *("eggs", "nuts", "leeks", "mushrooms", "peppers", "olives", "cherries", "grapes", "peas"),
    *("beets", "figs", "dates", "melons", "radishes", "turnips"),
)
THINGS = (
    *("lamps", "books", "chairs", "cups", "plates", "pens", "towels", "blankets", "candles"),
    *("bags", "boxes", "brushes", "hats", "knives", "maps", "ropes", "shirts", "socks", "spoons"),
    *("tents", "tickets", "bottles", "mirrors", "pillows"),
)
EVENTS = (
    *("wedding", "concert", "market", "meeting", "party", "picnic", "race", "trip", "festival"),
    *("auction", "lecture", "parade"),
)
PLACES = (
    *("library", "museum", "school", "bridge", "station", "hospital", "theatre", "garden"),
    *("harbour", "tower", "stadium", "bakery"),
)
CHORES = (
    *("cleans the kitchen", "walks the dog", "waters the plants", "calls the office"),
    *("reads a book", "cooks lunch", "feeds the cat", "goes to the gym", "visits a friend"),
    *("writes a letter", "paints the fence", "repairs the bike", "buys bread", "plays the piano"),
    *("washes the car", "bakes a cake", "sorts the mail", "mows the lawn", "cuts the hedge"),
)


def is_name_held_out(first: str, last: str) -> bool:
    """Whether a full name never occurs in training, though both its parts do; one in eight."""
    return (FIRST_NAMES.index(first) + 3 * LAST_NAMES.index(last)) % 8 == 0


def is_number_held_out(number: int) -> bool:
    """Whether a number never occurs in training: those from 10 whose digits sum to 7, 14, 21, …"""
    return number >= 10 and sum(map(int, str(number))) % 7 == 0


@dataclass(frozen=True)
class Draw:
    """Random choices, either of what training may see or of what is held out for evaluation.

    Attributes:
        rng: source of the choices.
        held_out: whether names, and numbers from 10, are those that training never sees.
    """

    rng: random.Random
    held_out: bool

    def one(self, choices: Sequence[Choice]) -> Choice:
        """One of `choices`."""
        return self.rng.choice(choices)

    def some(self, choices: Sequence[Choice], number: int) -> list[Choice]:
        """Different ones of `choices`, in a random order."""
        return self.rng.sample(choices, number)

    def name(self, *others: str) -> str:
        """A full name that shares no part with `others`."""
        taken = set(" ".join(others).split())
        while True:
            first, last = self.one(FIRST_NAMES), self.one(LAST_NAMES)
            fits = is_name_held_out(first, last) == self.held_out
            if fits and not {first, last} & taken:
                return f"{first} {last}"

    def number(self, low: int, high: int, *others: int) -> int:
        """A number from `low` to `high`, both included, that is none of `others`."""
        while True:
            number = self.rng.randint(low, high)
            fits = number < 10 or is_number_held_out(number) == self.held_out
            if fits and number not in others:
                return number
