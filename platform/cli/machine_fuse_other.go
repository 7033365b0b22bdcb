//go:build !linux

package cli

import "errors"

func checkFUSE() error { return errors.New("only Linux has it") }
