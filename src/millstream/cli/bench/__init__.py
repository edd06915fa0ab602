"""Commands that put load on a broker and measure it."""
