//go:build !linux

package kit

import "errors"

func CheckFUSE() error { return errors.New("only Linux has it") }
