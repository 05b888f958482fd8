import pytest
import torch

# The networks here are small: a second thread costs more than it brings, and the tests run side by side.
torch.set_num_threads(1)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list:
    """Every figure that is drawn."""
    from matplotlib import pyplot

    found: list = []
    close = pyplot.close
    monkeypatch.setattr(pyplot, "close", lambda figure: (found.append(figure), close(figure)))
    return found
