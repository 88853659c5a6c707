"""Lets an unmodified lm-eval find copyspec_eval's model and tasks; COPYSPEC_EVAL_AUTOLOAD=0: off.

The interpreter calls `install` at start-up (by the `.pth` file, or `.start` from Python 3.15 on),
which only adds a finder. It registers copyspec_eval when a module of `REGISTRARS` is imported.
"""

import sys

REGISTRARS = {
    "lm_eval.config.evaluate_config": "watch_command",
    "lm_eval.models": "register_model",
    "lm_eval.tasks": "register_tasks",
    "lm_eval.evaluator": "watch_evaluations",
}
BUSY = set()  # modules that `Finder` is asking the other finders for


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in REGISTRARS or name in BUSY:
            return None
        BUSY.add(name)
        try:
            import importlib.util
            import os

            if os.environ.get("COPYSPEC_EVAL_AUTOLOAD") == "0":
                return None
            spec = importlib.util.find_spec(name)
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (load(module), register(name))
            return spec
        except (Exception, SystemExit) as error:
            return warn(name, error)
        finally:
            BUSY.discard(name)


def register(name):
    try:
        from copyspec_eval.harness import autoload

        getattr(autoload, REGISTRARS[name])()
    except (Exception, SystemExit) as error:
        warn(name, error)


def warn(name, error):
    print(f"copyspec-eval: warning: not registered in {name}: {error!r}", file=sys.stderr)


def install():
    sys.meta_path.insert(0, Finder)
