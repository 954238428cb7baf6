"""Reading a model's reply: from its text to the code in it. `koderz.suites.extraction` is the way in."""
