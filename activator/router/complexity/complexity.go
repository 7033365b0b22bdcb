package complexity

import "github.com/thaw-dev/thaw/functions"

func Score(text string, f functions.RouteFeatures) float64 { return 0 }
