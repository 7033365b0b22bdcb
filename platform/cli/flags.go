package cli

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

type (
	flagT   = pflag.Flag
	flagSet = pflag.FlagSet
)

func newFlagSet() *flagSet { return pflag.NewFlagSet("", pflag.ContinueOnError) }

// quoted is a setting's value as it would stand in the file.
func quoted(s setting) string {
	switch s.value.Kind() {
	case reflect.String:
		return strconv.Quote(s.value.String())
	case reflect.Slice:
		var list []string
		for _, x := range s.value.Interface().([]string) {
			list = append(list, strconv.Quote(x))
		}
		return "[" + strings.Join(list, ", ") + "]"
	}
	return s.text()
}
