// Hello is the smallest thing that can be a Knative Service: it says who it is
// and for how long it has run, so that a caller sees whether it was woken.
package main

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"time"
)

func main() {
	began := time.Now()
	host, _ := os.Hostname()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if d, err := time.ParseDuration(r.FormValue("take")); err == nil && d > 0 && d < time.Minute {
			time.Sleep(d)
		}
		fmt.Fprintf(w, "%s, up for %v\n", host, time.Since(began).Round(time.Millisecond))
	})
	if err := http.ListenAndServe(":"+cmp.Or(os.Getenv("PORT"), "8080"), nil); err != nil {
		fmt.Fprintln(os.Stderr, "hello:", err)
		os.Exit(1)
	}
}
