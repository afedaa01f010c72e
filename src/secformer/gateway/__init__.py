"""The gateway: HTTP for applications, on the client's side of the trust line. It sees texts and results; servers do not.

In the order of their imports:

    failures   errors as an application hears them
    answers    what comes back for one text
    offers     the models, fetched and kept up with
    desk       where texts wait for a session, bounded, fair, in batches
    metrics    what Prometheus hears
    forms      requests and responses
    guard      token, names, sizes, log
    pages      the two pages, each one file
    routes     the interface
    service    the process

It needs the packages of the extra `gateway`; nothing below it imports it.
"""
