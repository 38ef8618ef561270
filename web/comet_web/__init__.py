"""The dashboard's pages: pure view models, templates and scripts.

Independent of SDK and gateway. The gateway's `dashboard` package loads the facts, calls a page's view, renders its
document, and sends updates to browsers.

    facts      facts about a cluster                          (built by the gateway)
    request    the address of a page, and the user            (built by the gateway)
    views/     facts, request -> Document                     (pure)
    document   fields, tables and charts of a page            (rendered as HTML, and sent as JSON)
    pages      the table of all pages
"""
