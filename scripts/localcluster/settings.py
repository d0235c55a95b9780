"""The router's configuration file."""


def render_ini(sections):
    """INI text of {section: {name: value}}."""
    parts = []
    for section, values in sections.items():
        parts.append(f"[{section}]\n" + "".join(f"{name} = {value}\n" for name, value in values.items()))
    return "\n".join(parts)
