"""The dashboard's pages: what they say (pure view models), how they are laid out (templates), how they live (scripts).

Knows neither the SDK nor the gateway. The gateway's `dashboard` package fetches the facts, asks a view for the document
that a page shows of them, renders it, and sends what changes to the browsers that look at it.

    facts      what is known of a cluster                     (made by the gateway)
    request      who looks at which page, and how               (made by the gateway)
    views/     facts, request -> Document                       (pure)
    document   fields, tables and charts of a page            (rendered into HTML, and sent as JSON)
    pages      the table of all pages
"""
