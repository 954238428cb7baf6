"""LiveCodeBench: tasks of programming contests by their date, judged as its own harness judges them."""
