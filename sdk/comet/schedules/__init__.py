"""When schedules are due, as a pure function of their text, the time and market calendars; see docs/schedules.md.

    spec        the language: at, every, cron, calendar
    cron        next times of cron fields on a wall clock
    zones       time zones of the tzdata package, and its version
    calendars   market calendars: sessions with their opening and closing times
    due         next times, late ones, jitter
    preview     the next times of a spec, for people

Clients and brokers compute the same, since neither the clock nor the machine's time zones are read.
"""
