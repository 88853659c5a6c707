"""News articles, and the sentences that sum them up: the lead and the results."""

from tiny import words
from tiny.turns import Turn
from tiny.words import Draw

LEADS = (
    "On {day} {name} opened a new {place} in {city}.",
    "{name}, a {job} from {city}, won the {event} on {day}.",
    "The {place} in {city} will close for {n} days, {name} said on {day}.",
    "{name} found {n} old {things} below the {place} in {city}.",
    "The {event} in {city} had {n} guests on {day}, {name} said.",
    "{name} sold the {place} in {city} for {n} million coins on {day}.",
    "The {job} {name} walked from {city} to {city2} in {n} days.",
    "{n} {things} were stolen from the {place} in {city} on {day}, {name} said.",
)
RESULTS = (
    "As a result, the {place} will get {n} new {things}.",
    "As a result, {name} will move to {city} on {day}.",
    "From now on the {place} is open until {day}.",
    "From now on every {job} pays {n} coins.",
    "In the end {name} went home with {n} {things}.",
    "In the end the {event} was moved to {city}.",
)
DETAILS = (
    "The weather was good and many people came by train.",
    "{name}, a {job}, brought {n} {things}.",
    "Some visitors ate {foods} and talked about {hobby}.",
    "The walls are {colour} and the doors are {colour2}.",
    "A {job} from {city} took {n} pictures.",
    "{name} likes {hobby} and has {n} {things} at home.",
    "The last {event} was {n} years ago.",
    "Most of the {foods} came from {city}.",
    "There was music by {name} in front of the {place}.",
    "It was the idea of a {job} from {city}.",
    "The road to the {place} was closed on {day}.",
    "About {n} people waited in front of the {place}.",
    "Nobody knew why the {things} were {colour}.",
    "{name} wore a {colour} hat and sang with a {job}.",
    "Children played with {things} and ate {foods}.",
    "The {job} did not want to talk about the {event}.",
)
ASK = (
    "Article:\n{}\n\nPick the 2 or 3 sentences that best sum it up. Copy them word for word.",
    "{}\n\nWhich sentences of this article are the most important ones? Copy 2 or 3 of them.",
)


def conversation(draw: Draw) -> tuple[str, list[Turn]]:
    """The article, and one turn."""
    lead = _filled(draw, draw.one(LEADS))
    results = [_filled(draw, result) for result in draw.some(RESULTS, draw.rng.randint(1, 2))]
    details = [_filled(draw, detail) for detail in draw.some(DETAILS, draw.rng.randint(5, 8))]
    body = _merged(draw, details, results)
    article = " ".join([lead, *body])
    return article, [Turn(draw.one(ASK).format(article), "\n".join([lead, *results]))]


def _merged(draw: Draw, details: list[str], results: list[str]) -> list[str]:
    """Both, each in its order, interleaved; a detail comes first."""
    places = sorted(draw.some(range(1, len(details) + len(results)), len(results)))
    merged = list(details)
    for place, result in zip(places, results, strict=True):
        merged.insert(place, result)
    return merged


def _filled(draw: Draw, sentence: str) -> str:
    city, city2 = draw.some(words.CITIES, 2)
    colour, colour2 = draw.some(words.COLOURS, 2)
    return sentence.format(
        name=draw.name(),
        n=draw.number(2, 99),
        day=draw.one(words.DAYS),
        place=draw.one(words.PLACES),
        job=draw.one(words.JOBS),
        event=draw.one(words.EVENTS),
        things=draw.one(words.THINGS),
        foods=draw.one(words.FOODS),
        hobby=draw.one(words.HOBBIES),
        city=city,
        city2=city2,
        colour=colour,
        colour2=colour2,
    )
