package admission

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// PriorityHeader is the field of a request's head that sets its priority.
const PriorityHeader = "thaw-priority"

// ParsePriority returns the priority of a request of the team with this header. Without one
// it is normal, or the highest that the team may use ("" is high) where that is lower.
func ParsePriority(header, team string, most functions.Priority) (Priority, *openai.Error) {
	most = cmp.Or(most, functions.PriorityHigh)
	asked := functions.Priority(header)
	switch {
	case header == "" && functions.PriorityNormal.Above(most):
		asked = most
	case header == "":
		return Normal, nil
	case !slices.Contains(functions.Priorities, asked):
		return Normal, openai.New(openai.InvalidValue,
			"The header thaw-priority is high, normal or low, not `"+functions.Clip(header)+"`.").With(PriorityHeader)
	case asked.Above(most):
		return Normal, openai.New(openai.PermissionDenied,
			fmt.Sprintf("The header thaw-priority asks for `%s`, and requests of the team `%s` are at most `%s` (priority.max of its team file).",
				asked, team, most)).With(PriorityHeader)
	}
	switch asked {
	case functions.PriorityHigh:
		return High, nil
	case functions.PriorityLow:
		return Low, nil
	}
	return Normal, nil
}
