package kit

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
)

// Setting is one field of a settings struct, by its tags.
type Setting struct {
	Name    string // as flag and key of the file
	env     string
	Default string
	Shown   string // the default, where it is worked out later
	Help    string
	OneOf   []string
	Value   reflect.Value
}

// Settings lists the fields of *config that have a name, those of embedded structs too. The tag env names
// another variable than THAW_ and the flag's name; the tag defaults of an embedded
// struct, "name=value", replaces a default of it.
func Settings(config any) []Setting { return settingsOf(reflect.ValueOf(config).Elem(), "") }

func settingsOf(v reflect.Value, defaults string) (list []Setting) {
	for f := range v.Type().Fields() {
		if f.Anonymous {
			list = append(list, settingsOf(v.FieldByIndex(f.Index), f.Tag.Get("defaults"))...)
		}
		if f.Tag.Get("json") == "" {
			continue
		}
		s := Setting{Name: f.Tag.Get("json"), env: f.Tag.Get("env"), Default: f.Tag.Get("default"), Shown: f.Tag.Get("shown"),
			Help: f.Tag.Get("help"), Value: v.FieldByIndex(f.Index)}
		s.env = cmp.Or(s.env, "THAW_"+strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_")))
		if name, def, _ := strings.Cut(defaults, "="); name == s.Name {
			s.Default = def
		}
		if o := f.Tag.Get("oneof"); o != "" {
			s.OneOf = strings.Split(o, ",")
		}
		list = append(list, s)
	}
	return list
}

// set parses one text into the field.
func (s Setting) set(text string) error {
	if u, ok := s.Value.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch s.Value.Kind() {
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", functions.Clip(text))
		}
		s.Value.SetBool(b)
	case reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is no number", functions.Clip(text))
		}
		s.Value.SetInt(int64(n))
	case reflect.Float64:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return fmt.Errorf("%q is no number", functions.Clip(text))
		}
		s.Value.SetFloat(x)
	case reflect.Slice:
		var list []string
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				list = append(list, part)
			}
		}
		s.Value.Set(reflect.ValueOf(list))
	default:
		s.Value.SetString(text)
	}
	return s.allowed()
}

func (s Setting) allowed() error {
	if s.OneOf != nil && !slices.Contains(s.OneOf, s.Value.String()) {
		return fmt.Errorf("%q is not one of %s", functions.Clip(s.Value.String()), strings.Join(s.OneOf, ", "))
	}
	return nil
}

func (s Setting) Text() string {
	if m, ok := s.Value.Interface().(encoding.TextMarshaler); ok {
		b, _ := m.MarshalText() // ours never fail
		return string(b)
	}
	if s.Value.Kind() == reflect.Slice {
		return strings.Join(s.Value.Interface().([]string), ",")
	}
	return fmt.Sprint(s.Value.Interface())
}

// flagValue is a setting as a flag. It keeps its text until the file and the
// environment have been read: the flag overrides both.
type flagValue struct {
	s     Setting
	given []string
}

func (f *flagValue) String() string {
	if f.s.Shown != "" {
		return ""
	}
	return f.s.Default
}

func (f *flagValue) Set(text string) error {
	if f.s.Value.Kind() != reflect.Slice {
		f.given = nil
	}
	f.given = append(f.given, text)
	// Tried on a copy, for the error to come with the flag.
	probe := f.s
	probe.Value = reflect.New(f.s.Value.Type()).Elem()
	return probe.set(text)
}

func (f *flagValue) Type() string {
	switch f.s.Value.Interface().(type) {
	case bool:
		return "bool"
	case int:
		return "int"
	case float64:
		return "float"
	case []string:
		return "strings"
	}
	return "string"
}

// RegisterFlags makes flags of the settings of *config.
func RegisterFlags(fs *pflag.FlagSet, config any) {
	for _, s := range Settings(config) {
		help := s.Help
		if s.OneOf != nil {
			help += " (" + strings.Join(s.OneOf, ", ") + ")"
		}
		if s.Shown != "" {
			help += " (default " + s.Shown + ")"
		}
		f := fs.VarPF(&flagValue{s: s}, s.Name, "", help+" ["+s.env+"]")
		if s.Value.Kind() == reflect.Bool {
			f.NoOptDefVal = "true"
		}
	}
}

// LoadSettings fills *config: default, then file, then environment, then flag. The
// result has the origin of each value.
func LoadSettings(fs *pflag.FlagSet, config any, file string, getenv func(string) string) (map[string]string, error) {
	origin := map[string]string{}
	list := Settings(config)
	for _, s := range list {
		if s.Default != "" {
			if err := s.set(s.Default); err != nil {
				return nil, fmt.Errorf("default of %s: %w", s.Name, err)
			}
		}
		origin[s.Name] = "default"
	}
	if file != "" {
		if err := CheckTilde("the file of settings", file); err != nil {
			return nil, err
		}
		data, err := ReadBounded(nil, file, maxConfig)
		if err != nil {
			return nil, err
		}
		before := map[string]string{}
		for _, s := range list {
			before[s.Name] = s.Text()
		}
		if err := catalog.DecodeInto(file, data, config); err != nil {
			return nil, err
		}
		given, err := catalog.Keys(file, data)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			if line, ok := given[s.Name]; ok {
				origin[s.Name] = file + ":" + strconv.Itoa(line)
				if err := s.allowed(); err != nil {
					return nil, fmt.Errorf("%s: %s: %w", origin[s.Name], s.Name, err)
				}
				if err := CheckTilde(origin[s.Name]+": "+s.Name, s.Text()); err != nil {
					return nil, err
				}
			}
		}
	}
	for _, s := range list {
		if text := strings.TrimSpace(getenv(s.env)); text != "" {
			if err := cmp.Or(CheckTilde(s.env, text), s.set(text)); err != nil {
				return nil, fmt.Errorf("%s: %w", s.env, err)
			}
			origin[s.Name] = s.env
		}
		f := fs.Lookup(s.Name)
		if f == nil || !f.Changed {
			continue
		}
		if err := s.set(strings.Join(f.Value.(*flagValue).given, ",")); err != nil {
			return nil, fmt.Errorf("--%s: %w", s.Name, err)
		}
		origin[s.Name] = "--" + s.Name
	}
	return origin, nil
}

// BindSettings registers the settings of *config as flags of cmd, and --config unless
// fileEnv, the variable that names the file too, is empty. load reads them from
// everywhere and calls check; hint is for its error.
func BindSettings(cmd *Command, config any, fileEnv string, getenv func(string) string, check func() error,
	hint string) (load func() (origin map[string]string, err error)) {
	RegisterFlags(cmd.Flags(), config)
	var file string
	if fileEnv != "" {
		cmd.Flags().StringVar(&file, "config", "", "file with settings ["+fileEnv+"]")
	}
	return func() (map[string]string, error) {
		from := "--config"
		if file == "" && fileEnv != "" {
			file, from = getenv(fileEnv), fileEnv
		}
		origin, err := LoadSettings(cmd.Flags(), config, file, getenv)
		if p, ok := errors.AsType[*os.PathError](err); ok && p.Path == file {
			return nil, &Error{Exit: ExitUsage, What: from, Err: err, Hint: "it names one file, which this user may read"}
		}
		if err == nil {
			if err = check(); err != nil {
				name, _, _ := strings.Cut(err.Error(), ": ")
				if at := origin[name]; at != "" && at != "default" {
					err = fmt.Errorf("%s: %w", at, err)
				}
			}
		}
		if e, ok := errors.AsType[*Error](err); ok {
			return nil, e
		}
		if err != nil {
			return nil, &Error{Exit: ExitUsage, What: "settings", Err: err, Hint: hint}
		}
		return origin, nil
	}
}

// maxConfig bounds a file of settings.
const maxConfig = 1 << 20

// ReadBounded reads a file, or where path is - and in is not nil in, up to one byte more than most.
func ReadBounded(in io.Reader, path string, most int64) ([]byte, error) {
	if path != "-" || in == nil {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	return io.ReadAll(io.LimitReader(in, most+1))
}

// Quoted is the value of the setting in the syntax of the file.
func (s Setting) Quoted() string {
	switch s.Value.Kind() {
	case reflect.String:
		return strconv.Quote(s.Value.String())
	case reflect.Slice:
		list := functions.ConvertAll(s.Value.Interface().([]string), func(x string) string { return strconv.Quote(x) })
		return "[" + strings.Join(list, ", ") + "]"
	}
	return s.Text()
}

func MakeAbsolute(paths ...*string) error {
	for _, p := range paths {
		if *p == "" {
			continue
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		*p = abs
	}
	return nil
}

// CheckTilde refuses the value of a setting that begins with the shell's name of a home folder:
// no program fills that in, and a folder named ~ would be made. name is for the error.
func CheckTilde(name, value string) error {
	if value != "~" && !strings.HasPrefix(value, "~/") {
		return nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/home/NAME"
	}
	return Usage("write the whole path: "+home+functions.Clip(value[1:]),
		"%s: %q begins with ~, and no shell filled that in", name, functions.Clip(value))
}

// CheckTildes checks the given flags, and the variables.
func CheckTildes(fs *FlagSet, variables map[string]string) (err error) {
	fs.Visit(func(f *Flag) {
		values := []string{f.Value.String()}
		switch v := f.Value.(type) {
		case *flagValue:
			values = v.given
		case pflag.SliceValue:
			values = v.GetSlice()
		}
		for _, v := range values {
			err = cmp.Or(err, CheckTilde("--"+f.Name, v))
		}
	})
	for name, value := range variables {
		err = cmp.Or(err, CheckTilde(name, value))
	}
	return err
}
