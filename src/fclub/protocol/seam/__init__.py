"""The seam between algorithms and what runs them: simulation, live servers, audit, dashboard.

An algorithm is a `Family`: from the parameters of a model it makes local servers, a global server and
a clock that fit together, and says what their releases promise. All other code knows only the
names of this package. `families.py` is the table of all families.
"""

from fclub.protocol.interfaces.exchange import Beginning, Moment
from fclub.protocol.interfaces.learner import Bound, State
from fclub.protocol.interfaces.overview import (
    CHANGE,
    CLUSTER,
    NOTHING,
    OBSERVATIONS,
    TIME,
    TYPE,
    VISITS_PER_USER,
    GlobalOverview,
    LocalOverview,
    Member,
    Outlook,
    global_overview,
    part_known,
)
from fclub.protocol.seam.family import (
    Compiled,
    Constants,
    Family,
    Kernels,
    Place,
    Price,
    Shape,
    Users,
)
from fclub.protocol.seam.servers import (
    Clock,
    Gathering,
    GlobalServer,
    LocalServer,
    nothing,
)

__all__ = [
    "CHANGE",
    "CLUSTER",
    "NOTHING",
    "OBSERVATIONS",
    "TIME",
    "TYPE",
    "VISITS_PER_USER",
    "Beginning",
    "Bound",
    "Clock",
    "Compiled",
    "Constants",
    "Family",
    "Gathering",
    "GlobalOverview",
    "GlobalServer",
    "Kernels",
    "LocalOverview",
    "LocalServer",
    "Member",
    "Moment",
    "Outlook",
    "Place",
    "Price",
    "Shape",
    "State",
    "Users",
    "global_overview",
    "nothing",
    "part_known",
]
