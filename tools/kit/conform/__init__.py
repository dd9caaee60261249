"""Tests another implementation's end of the cable against LINK/1, rule by rule (`palmctl dbd conform`)."""
