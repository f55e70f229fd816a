"""The quickstart's SDK snippets, run as printed against the README's server."""

from dataclasses import replace


def test_the_sdk_snippets_print_what_the_document_says(server, code_blocks, run_block):
    clients = [b for b in code_blocks("docs/quickstart.md", "python") if "localhost:8000" in b.code]
    assert len(clients) == 2
    for block in clients:
        code = block.code.replace("http://localhost:8000", server.url)
        run_block(replace(block, code=code))
