// Columns and cell texts that several tables share.

package kinds

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// What a cell says when it has nothing to say.
const (
	none    = "<none>"
	unset   = "<unset>"
	unknown = "<unknown>"
)

// maxListed bounds how many endpoints, ports or hosts a cell names.
const maxListed = 3

type columns = []metav1.TableColumnDefinition

func nameColumn() metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]}
}

func ageColumn() metav1.TableColumnDefinition {
	return text("Age", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"])
}

func text(name, doc string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string", Description: doc}
}

func integer(name, doc string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "integer", Description: doc}
}

func boolean(name, doc string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "boolean", Description: doc}
}

// wide marks a column as one that only -o wide shows.
func wide(c metav1.TableColumnDefinition) metav1.TableColumnDefinition {
	c.Priority = 1
	return c
}

func selectorColumn(doc string) metav1.TableColumnDefinition { return wide(text("Selector", doc)) }

// age is the time since t in a unit or two, as kubectl prints it.
func age(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return unknown
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

func microAge(t metav1.MicroTime, now time.Time) string { return age(metav1.NewTime(t.Time), now) }

// or returns s, or alt if s is empty.
func or(s, alt string) string {
	if s == "" {
		return alt
	}
	return s
}

// derefOr returns what p points to, or alt if it points to nothing.
func derefOr[T any](p *T, alt T) T {
	if p == nil {
		return alt
	}
	return *p
}

// boolCell spells an optional bool the way column printers of kubectl do.
func boolCell(p *bool) string {
	switch {
	case p == nil:
		return unset
	case *p:
		return "True"
	default:
		return "False"
	}
}

// labelsCell prints labels or a label map as k=v,… in order of the keys.
func labelsCell(m map[string]string) string {
	if len(m) == 0 {
		return none
	}
	pairs := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		pairs = append(pairs, k+"="+m[k])
	}
	return strings.Join(pairs, ",")
}

// listed joins the first few of items and counts the rest; empty is what it
// says of no items.
func listed(items []string, empty string) string {
	if len(items) == 0 {
		return empty
	}
	if len(items) <= maxListed {
		return strings.Join(items, ",")
	}
	return fmt.Sprintf("%s + %d more...", strings.Join(items[:maxListed], ","), len(items)-maxListed)
}

// objectCell is how kubectl names another object: kind.group/name.
func objectCell(kind, group, name string) string {
	if group != "" {
		kind += "." + group
	}
	return strings.ToLower(kind) + "/" + name
}
