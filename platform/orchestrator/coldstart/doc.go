// Package coldstart describes cold starts: their phases, their progress and the time that is
// left, from the reports of the replica that starts and the times of earlier starts. A Log
// keeps the newest.
package coldstart
