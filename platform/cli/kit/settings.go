package kit

import (
	"cmp"
	"encoding"
	"encoding/json"
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
	Name  string // as flag and key of the file
	env   string
	def   string
	shown string // the default, where it is worked out later
	help  string
	oneof []string
	value reflect.Value
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
		s := Setting{Name: f.Tag.Get("json"), env: f.Tag.Get("env"), def: f.Tag.Get("default"), shown: f.Tag.Get("shown"),
			help: f.Tag.Get("help"), value: v.FieldByIndex(f.Index)}
		s.env = cmp.Or(s.env, "THAW_"+strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_")))
		if name, def, _ := strings.Cut(defaults, "="); name == s.Name {
			s.def = def
		}
		if o := f.Tag.Get("oneof"); o != "" {
			s.oneof = strings.Split(o, ",")
		}
		list = append(list, s)
	}
	return list
}

// set parses one text into the field.
func (s Setting) set(text string) error {
	if u, ok := s.value.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch s.value.Kind() {
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", functions.Clip(text))
		}
		s.value.SetBool(b)
	case reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is no number", functions.Clip(text))
		}
		s.value.SetInt(int64(n))
	case reflect.Float64:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return fmt.Errorf("%q is no number", functions.Clip(text))
		}
		s.value.SetFloat(x)
	case reflect.Slice:
		var list []string
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				list = append(list, part)
			}
		}
		s.value.Set(reflect.ValueOf(list))
	default:
		s.value.SetString(text)
	}
	return s.allowed()
}

func (s Setting) allowed() error {
	if s.oneof != nil && !slices.Contains(s.oneof, s.value.String()) {
		return fmt.Errorf("%q is not one of %s", functions.Clip(s.value.String()), strings.Join(s.oneof, ", "))
	}
	return nil
}

func (s Setting) Text() string {
	if m, ok := s.value.Interface().(encoding.TextMarshaler); ok {
		b, _ := m.MarshalText() // ours never fail
		return string(b)
	}
	if s.value.Kind() == reflect.Slice {
		return strings.Join(s.value.Interface().([]string), ",")
	}
	return fmt.Sprint(s.value.Interface())
}

// flagValue is a setting as a flag. It keeps its text until the file and the
// environment have been read: the flag overrides both.
type flagValue struct {
	s     Setting
	given []string
}

func (f *flagValue) String() string {
	if f.s.shown != "" {
		return ""
	}
	return f.s.def
}

func (f *flagValue) Set(text string) error {
	if f.s.value.Kind() != reflect.Slice {
		f.given = nil
	}
	f.given = append(f.given, text)
	// Tried on a copy, for the error to come with the flag.
	probe := f.s
	probe.value = reflect.New(f.s.value.Type()).Elem()
	return probe.set(text)
}

func (f *flagValue) Type() string {
	switch f.s.value.Interface().(type) {
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
		help := s.help
		if s.oneof != nil {
			help += " (" + strings.Join(s.oneof, ", ") + ")"
		}
		if s.shown != "" {
			help += " (default " + s.shown + ")"
		}
		f := fs.VarPF(&flagValue{s: s}, s.Name, "", help+" ["+s.env+"]")
		if s.value.Kind() == reflect.Bool {
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
		if s.def != "" {
			if err := s.set(s.def); err != nil {
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
		if text := getenv(s.env); text != "" {
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
		if file == "" && fileEnv != "" {
			file = getenv(fileEnv)
		}
		origin, err := LoadSettings(cmd.Flags(), config, file, getenv)
		if err == nil {
			err = check()
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

// ExampleFile is a file with every setting, commented.
func ExampleFile(config any, schema string) []byte {
	var b strings.Builder
	b.WriteString("# yaml-language-server: $schema=" + schema + "\n")
	b.WriteString("# Settings of thaw. A flag or a THAW_ variable overrules what stands here.\n")
	for _, s := range Settings(config) {
		def := s.def
		if s.shown != "" {
			def = ""
		}
		fmt.Fprintf(&b, "\n# %s%s", strings.ToUpper(s.help[:1]), s.help[1:])
		if s.oneof != nil {
			b.WriteString(" (" + strings.Join(s.oneof, ", ") + ")")
		}
		b.WriteString(".")
		if s.shown != "" {
			b.WriteString(" Unless said: " + s.shown + ".")
		}
		b.WriteString("\n")
		switch s.value.Kind() {
		case reflect.Slice:
			def = "[]"
		case reflect.Bool:
		case reflect.String:
			def = strconv.Quote(def)
		}
		fmt.Fprintf(&b, "#%s: %s\n", s.Name, def)
	}
	return []byte(b.String())
}

// SettingsSchema is the JSON schema of a file of settings.
func SettingsSchema(config any, title string) []byte {
	props := map[string]any{}
	for _, s := range Settings(config) {
		p := map[string]any{"description": s.help}
		switch s.value.Kind() {
		case reflect.Bool:
			p["type"] = "boolean"
		case reflect.Slice:
			p["type"], p["items"] = "array", map[string]any{"type": "string"}
		case reflect.String:
			p["type"] = "string"
		case reflect.Float64:
			p["type"] = []string{"string", "number"}
		default:
			p["type"] = []string{"string", "integer"}
		}
		if s.oneof != nil {
			p["enum"] = s.oneof
		}
		if s.def != "" && s.shown == "" && s.value.Kind() != reflect.Bool {
			p["default"] = s.def
		}
		props[s.Name] = p
	}
	b, err := json.MarshalIndent(map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title,
		"type": "object", "additionalProperties": false, "properties": props,
	}, "", "  ")
	if err != nil {
		panic(err) // only maps, strings and lists are in it
	}
	return append(b, '\n')
}

// Quoted is the value of the setting in the syntax of the file.
func (s Setting) Quoted() string {
	switch s.value.Kind() {
	case reflect.String:
		return strconv.Quote(s.value.String())
	case reflect.Slice:
		list := functions.ConvertAll(s.value.Interface().([]string), func(x string) string { return strconv.Quote(x) })
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
