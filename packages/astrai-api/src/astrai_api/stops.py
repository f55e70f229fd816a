"""Stop strings as clients send them: one, several, or none."""

from typing import Any

from astrai_api.errors import bad_request
from astrai_engine.request import MAX_STOP_STRINGS


def stop_strings(stop: str | list[Any] | None, param: str) -> tuple[str, ...]:
    """The stop strings, checked.

    Args:
        stop: the wire value; null and an empty list are none.
        param: what the protocol calls the field.

    Raises:
        ApiError: 400, for an entry that is not text or is empty, or for too many.
    """
    if stop is None:
        return ()
    entries = [stop] if isinstance(stop, str) else stop
    if not all(isinstance(entry, str) and entry for entry in entries):
        raise bad_request(f"{param} must hold strings that are not empty.", param=param)
    if len(entries) > MAX_STOP_STRINGS:
        raise bad_request(
            f"{param} takes at most {MAX_STOP_STRINGS} strings, not {len(entries)}.", param=param
        )
    return tuple(entries)
