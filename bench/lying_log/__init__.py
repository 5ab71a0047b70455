"""How far can a log move a model? ``python -m bench.lying_log``, see docs/threat-model.md."""
