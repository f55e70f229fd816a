"""Answers without parts."""

from astrai_api.answer_parts import ContentText
from astrai_api.plain import PlainAnswer


def test_all_is_content(parse_all_ways):
    assert parse_all_ways(PlainAnswer, "<think> <tool_call> \n") == [
        ContentText("<think> <tool_call> \n")
    ]
    assert parse_all_ways(PlainAnswer, "") == []
