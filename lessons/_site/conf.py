"""How Sphinx makes the pages of the lessons; _pages.py calls it and lays its sources out. No page asks another host."""

project = html_title = "rlcorr"
extensions = ["myst_nb"]
html_theme = "furo"
html_copy_source = html_show_sourcelink = html_show_copyright = False
html_static_path = ["static"]
html_extra_path = ["beside"]
html_favicon = "static/icon.svg"
html_css_files = ["katex.min.css", "pages.css"]
html_js_files = [("auto-render.min.js", {"defer": "defer"}), ("pages.js", {"defer": "defer"})]
# Sphinx writes \(…\) and \[…\]; KaTeX is smaller than MathJax, and pages.js calls it.
mathjax_path = "katex.min.js"
mathjax_options = {"defer": "defer"}
myst_update_mathjax = False
exclude_patterns = ["beside", "static"]

nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"  # of what a cell says, with its formulas
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
nb_ipywidgets_js = {}  # they would come from another host
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_url_schemes = {"https": None, "http": None, "playground": "../index.html?{{path}}"}
