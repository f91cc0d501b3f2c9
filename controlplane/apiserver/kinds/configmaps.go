// The kind ConfigMap.

package kinds

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func configMaps() Kind {
	return of[corev1.ConfigMap, corev1.ConfigMapList](corev1.SchemeGroupVersion, "ConfigMap", "configmaps", "configmap", Kind{
		short: []string{"cm"}, indexed: "metadata.name",
		rules: Rules{Create: create(validateConfigMap), Update: update(validateConfigMapUpdate)},
		table: configMapTable,
	})
}

// validateConfigMap checks a config map's keys and size.
func validateConfigMap(c *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	size := 0
	for _, k := range slices.Sorted(maps.Keys(c.Data)) {
		at := field.NewPath("data").Key(k)
		errs = append(errs, messages(at, k, validation.IsConfigMapKey(k))...)
		if _, ok := c.BinaryData[k]; ok {
			errs = append(errs, field.Invalid(at, k, "duplicate of key present in binaryData"))
		}
		size += len(c.Data[k])
	}
	for _, k := range slices.Sorted(maps.Keys(c.BinaryData)) {
		errs = append(errs, messages(field.NewPath("binaryData").Key(k), k, validation.IsConfigMapKey(k))...)
		size += len(c.BinaryData[k])
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize))
	}
	return errs
}

// validateConfigMapUpdate checks a change of a config map, of which nothing may
// change once immutable is set.
func validateConfigMapUpdate(c, old *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	if deref(old.Immutable) {
		if !deref(c.Immutable) {
			errs = append(errs, field.Forbidden(field.NewPath("immutable"), immutableData))
		}
		if !equal(c.Data, old.Data) {
			errs = append(errs, field.Forbidden(field.NewPath("data"), immutableData))
		}
		if !equal(c.BinaryData, old.BinaryData) {
			errs = append(errs, field.Forbidden(field.NewPath("binaryData"), immutableData))
		}
	}
	return append(errs, validateConfigMap(c)...)
}

func configMapTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{nameColumn(), text("Data", corev1.ConfigMap{}.SwaggerDoc()["data"]), ageColumn()},
		func(o *corev1.ConfigMap, now time.Time) []any {
			return []any{o.Name, int64(len(o.Data) + len(o.BinaryData)), age(o.CreationTimestamp, now)}
		})
}
