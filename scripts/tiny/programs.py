"""Small programs: a problem in words, its solution, a second look, and the final version."""

from collections.abc import Mapping
from dataclasses import dataclass

from tiny import words
from tiny.turns import Turn
from tiny.words import Draw

SHARE_WITH_MISTAKES = 0.15


@dataclass(frozen=True)
class Problem:
    """A kind of problem; `{x}` and `{y}` are things, `{name}` is a person.

    Attributes:
        question: with the given variables' names in braces.
        given: variables, and the lowest and highest number of each.
        steps: variables and what they are computed from; the last one is the solution.
    """

    question: str
    given: Mapping[str, tuple[int, int]]
    steps: Mapping[str, str]


PROBLEMS = (
    Problem(
        "{name} buys {first} {x} at {first_price} coins each and {second} {y} at {second_price} "
        "coins each. The bag costs {bag} coins. How many coins does {name} pay?",
        {
            "first": (2, 99),
            "first_price": (2, 60),
            "second": (2, 99),
            "second_price": (2, 60),
            "bag": (2, 30),
        },
        {
            "first_cost": "first * first_price",
            "second_cost": "second * second_price",
            "total": "first_cost + second_cost + bag",
        },
    ),
    Problem(
        "{name} has {start} coins, earns {wage} coins a day for {days} days, and then spends "
        "{rent} coins on rent and {food} coins on {x}. How many coins are left?",
        {"start": (100, 999), "wage": (20, 99), "days": (5, 60), "rent": (10, 99), "food": (2, 60)},
        {"earned": "wage * days", "spent": "rent + food", "left": "start + earned - spent"},
    ),
    Problem(
        "There are {boxes} boxes with {each} {x} each. {name} adds {extra} {x}, sells {sold} of "
        "them, and finds that {broken} are broken. How many good {x} are left?",
        {"boxes": (10, 99), "each": (10, 60), "extra": (2, 99), "sold": (2, 60), "broken": (2, 30)},
        {
            "packed": "boxes * each",
            "all_things": "packed + extra",
            "left": "all_things - sold - broken",
        },
    ),
    Problem(
        "{name} drives {hours} hours at {speed} km an hour, then {more_hours} hours at "
        "{more_speed} km an hour, and walks {walk} km. How many km is that?",
        {
            "hours": (2, 16),
            "speed": (20, 99),
            "more_hours": (2, 16),
            "more_speed": (20, 99),
            "walk": (2, 30),
        },
        {
            "first_part": "hours * speed",
            "second_part": "more_hours * more_speed",
            "distance": "first_part + second_part + walk",
        },
    ),
    Problem(
        "A garden is {length} metres long and {width} metres wide. A metre of fence costs {price} "
        "coins, and the gate costs {gate} coins. {name} pays {paid} coins at once. How many coins "
        "does {name} still owe?",
        {
            "length": (20, 99),
            "width": (20, 99),
            "price": (2, 60),
            "gate": (10, 99),
            "paid": (2, 60),
        },
        {"fence": "2 * (length + width)", "cost": "fence * price + gate", "owed": "cost - paid"},
    ),
    Problem(
        "{name} invites {guests} guests to the party. Each gets {x_each} {x} and {y_each} {y}. "
        "{name} keeps {x_kept} {x} and {y_kept} {y}. How many {x} and {y} does {name} need?",
        {
            "guests": (5, 99),
            "x_each": (2, 16),
            "y_each": (2, 16),
            "x_kept": (2, 60),
            "y_kept": (2, 60),
        },
        {
            "x_needed": "guests * x_each + x_kept",
            "y_needed": "guests * y_each + y_kept",
            "needed": "x_needed + y_needed",
        },
    ),
)

ASK = (
    "Solve this problem with a Python program: {} Put the program into a ```python block.",
    "{} Write a Python program that prints the solution, in a ```python block.",
)
CHECK = (
    "Go over the code again. Look for issues that could lead to a wrong answer.",
    "Look at the code again. Is there anything wrong with it?",
)
FINAL = (
    "Now give the code that you consider correct, in a ```python block.",
    "Give me the final code in a ```python block.",
)


def conversation(draw: Draw, mistakes: bool = True) -> tuple[int, list[Turn]]:
    """The right solution, and three turns.

    With `mistakes`, a share of the first programs has a wrong number, which the second answer
    finds and the third corrects; such a first answer is not learned.
    """
    problem = draw.one(PROBLEMS)
    numbers = {name: draw.number(*limits) for name, limits in problem.given.items()}
    x, y = draw.some(words.FOODS + words.THINGS, 2)
    question = problem.question.format(name=draw.name(), x=x, y=y, **numbers)
    written = dict(numbers)
    if mistakes and draw.rng.random() < SHARE_WITH_MISTAKES:
        name = draw.one(list(numbers))
        written[name] = draw.number(*problem.given[name], numbers[name])
    turns = [
        Turn(draw.one(ASK).format(question), program(problem, written), written == numbers),
        Turn(draw.one(CHECK), check(numbers, written)),
        Turn(draw.one(FINAL), program(problem, numbers)),
    ]
    return solution(problem, numbers), turns


def program(problem: Problem, numbers: Mapping[str, int]) -> str:
    """The answer with the program."""
    lines = [f"{name} = {value}" for name, value in (*numbers.items(), *problem.steps.items())]
    return "\n".join(["```python", *lines, f"print({lines[-1].split()[0]})", "```"])


def check(numbers: Mapping[str, int], written: Mapping[str, int]) -> str:
    """The answer that compares each number of the problem with the one in the code."""
    lines = [f"{name}: problem {numbers[name]}, code {written[name]}" for name in numbers]
    wrong = [name for name in numbers if written[name] != numbers[name]]
    verdict = f"The number of {wrong[0]} is wrong." if wrong else "I found no issues."
    return "\n".join([*lines, verdict])


def solution(problem: Problem, numbers: Mapping[str, int]) -> int:
    """What the right program prints."""
    variables: dict[str, int] = dict(numbers)
    for name, expression in problem.steps.items():
        variables[name] = eval(expression, {"__builtins__": {}}, variables)
    return variables[name]
