"""`solution` runs an answer in one sandbox; `verdict`, in another, tests it through a socket."""
