package cli

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

type (
	Flag    = pflag.Flag
	FlagSet = pflag.FlagSet
)

func NewFlagSet() *FlagSet { return pflag.NewFlagSet("", pflag.ContinueOnError) }

// QuotedSetting is a setting's value as it would stand in the file.
func QuotedSetting(s Setting) string {
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
	return s.Text()
}
