import java.lang.reflect.Field;
import java.util.concurrent.ThreadLocalRandom;
import sun.misc.Unsafe;

/** Stands in for the Spring container, which would fill private fields, and fixes the one random source the rules use. */
final class Reflection {
    private static final Unsafe UNSAFE = unsafe();

    private Reflection() {}

    /** Sets the field of this type, which the object's own class must declare exactly once. */
    static void set(Object object, Class<?> type, Object value) throws IllegalAccessException {
        Field found = null;
        for (Field field : object.getClass().getDeclaredFields()) {
            if (field.getType() == type) {
                if (found != null) {
                    throw new IllegalStateException("two fields of " + type + " in " + object.getClass());
                }
                found = field;
            }
        }
        if (found == null) {
            throw new IllegalStateException("no field of " + type + " in " + object.getClass());
        }
        found.setAccessible(true);
        found.set(object, value);
    }

    /** Sets a field by name, declared by a superclass. */
    static void set(Object object, Class<?> owner, String name, Object value) throws ReflectiveOperationException {
        Field field = owner.getDeclaredField(name);
        field.setAccessible(true);
        field.set(object, value);
    }

    /** An object whose constructor has not run. */
    static Object allocate(Class<?> type) throws InstantiationException {
        return UNSAFE.allocateInstance(type);
    }

    /** Fixes the sequence this thread's ThreadLocalRandom goes on with; it has no public way to do so. */
    static void seedThreadLocalRandom(long seed) throws NoSuchFieldException {
        // The first use initialises, and would overwrite the seed.
        ThreadLocalRandom.current();
        Field field = Thread.class.getDeclaredField("threadLocalRandomSeed");
        UNSAFE.putLong(Thread.currentThread(), UNSAFE.objectFieldOffset(field), seed);
    }

    private static Unsafe unsafe() {
        try {
            Field field = Unsafe.class.getDeclaredField("theUnsafe");
            field.setAccessible(true);
            return (Unsafe) field.get(null);
        } catch (ReflectiveOperationException e) {
            throw new ExceptionInInitializerError(e);
        }
    }
}
