"""The session and the URL.

This table has the whole state of the address. A key with its default value is not in the URL.

| key | what | default | who writes it |
|---|---|---|---|
| `run` | slug of the run | `newest`: `recorded.default_run` | widget in controls/pickers.py |
| `step` | number of the step | `latest` readable one | widget in controls/pickers.py |
| `preset` | name of the preset (A of Compare) | `decoupled_token_is` | widget in controls/configuration.py |
| `level`, `mode`, `rules`, `denominator`, `normalise` | choices, if not the preset's | the preset's | state/fields.py |
| `is_upper`, `is_lower`, RULE`_upper`, RULE`_lower` | bounds, if not the preset's | the preset's | state/fields.py |
| `b.` + one of the two rows above | the same of B, only in Compare | B's preset's | state/fields.py |
| `answers` | answers in a batch: Gradient, Compare | 256 | controls/batch_size.py; a widget in Compare |
| `system` | the system to export to: bench, Your data | the last one, at first verl | widget in controls/systems.py |
| `compare` | `two configurations` or `two runs` | the former | widget in views/compare.py |
| `preset_b` | preset of B in Compare | `decoupled_geo_rs_token_tis` | widget in controls/configuration.py |
| `run_b`, `step_b` | run B and its step in Compare | `another` run; `latest` | widgets in controls/pickers.py |
| `token` | ROW.COLUMN of the opened token | the one furthest from ratio 1 | state/opened_token.py |
| `toy` | whether the exact toy is open: Gradient | closed | widget in views/gradient.py |
| `methods` | methods drawn: Mismatch | TIS, IcePop, KPop, DPPO | widget in views/mismatch.py |
| `keep` | share to keep: Your data | 95 % | widget in views/yours.py |
| `part` | part of Training: Runs, Study, Train | Runs | widget in views/training.py |
| `with` | other runs in the curves of Training | none | controls/overlaid.py |
| `study` | name of the study | the first of the index | widget in views/training_study.py |
| `presets` | presets drawn in the study | the best three, the last, no correction | widget in views/training_study.py |
| `learn` | part of Learn: Lessons, Glossary, … | Lessons | widget in views/learn.py |
| `lesson` | slug of the lesson to open: Learn | the list of lessons | links only |
| `start_bound` | the bound of the moving picture: Start | the preset's | views/start.py |
| `hide` | names of controls to hide, for the whole visit | none | links; kept by controls/sharing.py |
| `projector` | 1: large type | 0 | controls/sharing.py |

`state/address.py` says when these values are taken from the URL and when they are written there. `run` is always
written, because a URL with a run is complete. The navigation's links name nothing: they keep all values as they are.
"""
