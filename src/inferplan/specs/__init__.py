"""What a user writes down: accelerators, models, number formats. Data with sources; no formula lives here."""
