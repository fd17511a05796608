#ifndef GE2_FLOAT_COS_H
#define GE2_FLOAT_COS_H

#include "ge2/float_by_angle.h"

GE2_BY_ANGLE(cos)

#endif
