"""``python -m tests.mutants.run_machine NAME`` runs one property machine, and makes no failure smaller.

Ends with 1 and the last line of the failure if the machine finds a fault.
"""

import sys

from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.core.session.test_safety_properties import Safety, TestSafety
from tests.core.session.test_session_properties import Connections, TestConnections

MACHINES: dict[str, tuple[type[RuleBasedStateMachine], settings]] = {
    "connections": (Connections, TestConnections.settings),
    "safety": (Safety, TestSafety.settings),
}


def main(name: str) -> int:
    machine, usual = MACHINES[name]
    found = settings(
        usual,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
        deadline=None,
        report_multiple_bugs=False,
        print_blob=False,
    )
    try:
        run_state_machine_as_test(machine, settings=found)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        print(text[:100])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
