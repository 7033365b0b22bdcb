package pods

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const stopWait = time.Second

// awaitStop waits until a traced process has stopped.
func awaitStop(pid int) error {
	for end := time.Now().Add(stopWait); ; {
		var ws unix.WaitStatus
		got, err := unix.Wait4(pid, &ws, unix.WNOHANG|unix.WALL, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case got == pid && ws.Stopped():
			return nil
		case got == pid:
			return errors.New("it has ended")
		case time.Now().After(end):
			return fmt.Errorf("it does not stop within %s", stopWait)
		default:
			time.Sleep(100 * time.Microsecond)
		}
	}
}
