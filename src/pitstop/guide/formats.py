"""What formats of strings mean beyond what the grammar library makes of them."""

from __future__ import annotations

from typing import Any

_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DAY = f"([0-9]{{4}}-(0[13-9]|1[0-2])|[0-9]{{4}}-02-([01][0-9]|2[0-8])|{_LEAP}-02-29)"
_SECOND = "[^:]+:[^:]+:[0-5]"
_LABEL = "([^.]{1,3}|[^.]{2}([^.-][^.]|-[^.-])[^.]{0,59})"
_NAME = f"{_LABEL}([.]{_LABEL})*"

NARROWED: dict[str, dict[str, Any]] = {
    "date": {"pattern": f"^{_DAY}"},
    "date-time": {"pattern": f"^{_DAY}{_SECOND}"},
    "time": {"pattern": f"^{_SECOND}"},
    "hostname": {"pattern": f"^{_NAME}$", "maxLength": 253},
    "email": {"pattern": f"^[^@]{{1,64}}@{_NAME}$", "maxLength": 254},
    "uri": {"pattern": "^[^:]{1,40}:"},
}
"""Schemas that hold of formats, too. A year of 366 days has a February 29 (RFC 3339, appendix C). A 60th second is valid at few times (its
appendix D), which no grammar knows: it never comes. A name has labels of 63 characters, none with hyphens in places 3 and 4, which announce
an encoding (RFC 5890, section 2.3.1), and 253 in all; what stands before an address's @ has 64 (RFC 5321, section 4.5.3.1). A URI's scheme
may be of any length (RFC 3986, section 3.1), and a small model can lengthen it for ever: the longest registered one has 36 characters."""
