"""What people look at: figures, HTML pages that need no network, the report of a fit."""
